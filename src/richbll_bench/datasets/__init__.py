"""The data sets, one file each. A file's name is the data set's name.

A data set is a module with `dataset = csv_dataset(__name__, …)`; dropping a file here is all that it takes to add one.

Examples:
    >>> "boston" in names()
    True
    >>> declaration("boston").target
    'medv'
"""

import difflib
import importlib
import pkgutil

from richbll_bench.data.dataset import Dataset
from richbll_bench.data.finding import find
from richbll_bench.data.reading import Examples
from richbll_bench.errors import ContentError, UnknownDatasetError

__all__ = ["declaration", "load", "names"]


def names() -> list[str]:
    """The names that `load` takes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def declaration(name: str) -> Dataset:
    """What the file of that name declares."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownDatasetError(f"There is no data set {name!r}; there are {', '.join(names())}.{hint}")
    found = getattr(importlib.import_module(f"{__name__}.{name}"), "dataset", None)
    if not isinstance(found, Dataset) or found.name != name:
        raise ContentError(f"datasets/{name}.py must hold `dataset = csv_dataset(__name__, …)`; it holds {found!r}.")
    return found


def load(name: str, *, fetching: bool = True) -> Examples:
    """Inputs, targets and column names of a data set: from $RICHBLL_DATA, the cache, or the public source."""
    dataset = declaration(name)
    return dataset.read(find(dataset, fetching=fetching))
