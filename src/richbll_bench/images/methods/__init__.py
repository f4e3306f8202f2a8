"""The methods for images, one file each; a file holds `method`.

Examples:
    >>> load("rich_bll_s").title
    'Rich-BLL (S)'
"""

from richbll_bench.errors import UnknownMethodError
from richbll_bench.found import files_in, module_of
from richbll_bench.images.task import Method

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names of the files."""
    return files_in(__path__)


def load(name: str) -> Method:
    """The method of that name."""
    found: Method = module_of(
        __name__, name, names(), UnknownMethodError, f"There is no method {name!r} for images"
    ).method
    return found
