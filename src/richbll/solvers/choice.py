"""Which solver "auto" means, and what it will cost: decided from shapes and memory, before any work."""

import warnings

from richbll.checks import human_bytes, one_of
from richbll.errors import OptionError, RichBLLWarning
from richbll.network.network import Network
from richbll.network.records import RecordReader
from richbll.solvers import named_solver, solver_names
from richbll.solvers.cross import check_fits as check_cross_fits
from richbll.solvers.cross import cross_bytes
from richbll.solvers.plan import Plan, Size, additive_plan, exact_plan, must_fit
from richbll.solvers.sketch import Sketched, sketch_bytes
from richbll.solvers.sketch import check_fits as check_sketch_fits
from richbll.solvers.solution import Solver, Source

_SKETCH = Sketched()
_MOST_PASSES = 16  # over the data, in blocks of parameters; beyond that a sketch is the better bargain


def choose_solver(solver: str | Solver, network: Network, source: Source, memory: int) -> Solver:
    """The solver named, the object given, or for "auto" the cheapest exact one that fits, else a sketch."""
    if not isinstance(solver, str):
        return solver
    name = one_of("solver", solver, ["auto", *solver_names()])
    if name == "auto":
        with source.ranks.together("choosing a solver") as block:
            block.value = automatic(network, source, memory, source.num_rows)
        name = max(block.said, key=("exact", "cross", "sketch").index)  # what fits everywhere
        if name == "sketch":
            m, c, r = _sizes(network)
            warnings.warn(
                f"The exact projection of {m:,} parameters takes {human_bytes(cross_bytes(c, m, r))} in one pass over "
                f"the data, or more than {_MOST_PASSES} passes within memory_budget ({human_bytes(memory)}): it is "
                "sketched, with an error of some per cent. Give a larger budget, or a subsample.",
                RichBLLWarning,
                stacklevel=5,
            )
    return named_solver(name)


def automatic(
    network: Network, source: Source, memory: int, num_rows: int | None, reader: RecordReader | None = None
) -> str:
    """ "exact" where the data can be read as often as that needs, else "cross" where that fits, else "sketch"."""
    m, c, r = _sizes(network)
    if source.can_be_reread:
        if cross_bytes(c, m, r) <= _MOST_PASSES * (memory // 4):
            return "exact"
        shapes = (reader or RecordReader(network, source.peek())).shapes
        plan = exact_plan(shapes, Size(num_rows, r, c, memory), may_cache=not source.keeps_state)
        many = plan.num_passes > _MOST_PASSES and sketch_bytes(c, _SKETCH.size, r) <= memory // 2
        return "sketch" if many else "exact"
    return "cross" if cross_bytes(c, m, r) <= memory * 3 // 4 else "sketch"


def planned(
    solver: str | Solver, network: Network, source: Source, memory: int, num_rows: int | None, reader: RecordReader
) -> Plan:
    """What a solver will do, as far as shapes tell. Raises when nothing fits."""
    m, c, r = _sizes(network)
    size = Size(num_rows, r, c, memory)
    name = automatic(network, source, memory, num_rows, reader) if solver == "auto" else solver
    if name == "exact":
        must_fit(f"One parameter with {c} output(s) and {r} directions", 8 * c * r, memory // 4, "Raise the budget.")
        return exact_plan(reader.shapes, size, may_cache=not source.keeps_state)
    if name == "cross":
        check_cross_fits(c, m, r, memory)
        return additive_plan(reader.shapes, size, r, None)
    sketched = named_solver(name) if isinstance(name, str) else name
    if not isinstance(sketched, Sketched):
        raise OptionError(f"There is no plan for a solver of your own ({sketched!r}).")
    check_sketch_fits(c, sketched.size, r, memory)
    return additive_plan(reader.shapes, size, r, sketched)


def _sizes(network: Network) -> tuple[int, int, int]:
    """m, c and r."""
    return sum(network.parameter_sizes.values()), network.num_gradients, network.last_layer.num_features
