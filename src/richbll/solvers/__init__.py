"""Ways to get AᵀA out of a network and its data, one file each. A file's name is the solver's name.

A solver is a module with a function `solve(network, stream, memory) -> Solution`; dropping a file here is all that it
takes to add one. `routes/` holds the exact solver's parts, `plan` what they cost, `choice` which one "auto" means.
"""

import importlib
import pkgutil
from functools import cache

from richbll.solvers.solution import Solver

_NOT_SOLVERS = {"choice", "plan", "routes", "solution"}


@cache
def solver_names() -> tuple[str, ...]:
    """The names that `solver=` takes besides "auto"."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_SOLVERS))


def named_solver(name: str) -> Solver:
    """The solver in the file of that name."""
    chosen: Solver = importlib.import_module(f"{__name__}.{name}").solve
    return chosen
