"""The data sets, one file each. A file's name is the data set's name.

A data set is a module with `dataset = csv_dataset(__name__, …)`; dropping a file here is all that it takes to add one.

Examples:
    >>> "boston" in names()
    True
    >>> declaration("boston").target
    'medv'
"""

from richbll_bench.data.dataset import Dataset
from richbll_bench.data.finding import find
from richbll_bench.data.reading import Examples
from richbll_bench.errors import ContentError, UnknownDatasetError
from richbll_bench.found import files_in, module_of

__all__ = ["declaration", "load", "names"]


def names() -> list[str]:
    """The names that `load` takes."""
    return files_in(__path__)


def declaration(name: str) -> Dataset:
    """What the file of that name declares."""
    module = module_of(__name__, name, names(), UnknownDatasetError, f"There is no data set {name!r}")
    found = getattr(module, "dataset", None)
    if not isinstance(found, Dataset) or found.name != name:
        raise ContentError(f"datasets/{name}.py must hold `dataset = csv_dataset(__name__, …)`; it holds {found!r}.")
    return found


def load(name: str, *, fetching: bool = True) -> Examples:
    """Inputs, targets and column names of a data set: from $RICHBLL_DATA, the cache, or the public source."""
    dataset = declaration(name)
    return dataset.read(find(dataset, fetching=fetching))
