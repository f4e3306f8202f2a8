"""Ways to get AᵀA out of a network and its data, one file each. A file's name is the solver's name.

A solver is a module with a function `solve(network, stream, memory) -> Solution`; dropping a file here is all that it
takes to add one. `routes/` holds the exact solver's parts, `plan` what they cost.
"""

import importlib
import pkgutil

from richbll.checks import one_of
from richbll.solvers.solution import Solver, Source

_NOT_SOLVERS = {"solution", "plan", "routes"}


def solver_names() -> list[str]:
    """The names that `solver=` takes besides "auto"."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_SOLVERS)


def choose_solver(solver: str | Solver, stream: Source) -> Solver:
    """The solver named, the object given, or for "auto" the exact one, which needs data that can be read twice."""
    if not isinstance(solver, str):
        return solver
    name = one_of("solver", solver, ["auto", *solver_names()])
    if name == "auto":
        name = "exact" if stream.can_be_reread else "cross"
    chosen: Solver = importlib.import_module(f"{__name__}.{name}").solve
    return chosen
