"""The experiments, one file each: `richbll bench NAME` runs it, `richbll report` shows it.

Examples:
    >>> "uci" in names()
    True
    >>> load("uci").name
    'uci'
"""

from richbll_bench.errors import UnknownExperimentError
from richbll_bench.experiment import Experiment
from richbll_bench.found import files_in, module_of

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names that `load` takes: those of the files, with dashes."""
    return sorted(name.replace("_", "-") for name in files_in(__path__))


def load(name: str) -> Experiment:
    """The experiment of that name."""
    found: Experiment = module_of(
        __name__, name, names(), UnknownExperimentError, f"There is no experiment {name!r}"
    ).experiment
    return found
