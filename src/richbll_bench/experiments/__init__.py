"""The experiments, one file each: `richbll bench NAME` runs it, `richbll report` shows it.

Examples:
    >>> "uci" in names()
    True
    >>> load("uci").name
    'uci'
"""

import difflib
import importlib
import pkgutil

from richbll_bench.errors import UnknownExperimentError
from richbll_bench.experiment import Experiment

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names that `load` takes: those of the files, with dashes."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownExperimentError(f"There is no experiment {name!r}; there are {', '.join(names())}.{hint}")
    found: Experiment = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").experiment
    return found
