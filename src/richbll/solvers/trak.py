"""The paper's route: every example's whole gradient, projected by a dense Gaussian matrix, as TRAK does it.

A reference to compare with: it forms each gradient by the general route and draws m q normal numbers. `exact` is faster
and has no such error.
"""

from richbll.solvers.sketch import Sketched

solve = Sketched("gaussian", size=2048, rules=False)
