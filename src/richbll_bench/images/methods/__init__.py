"""The methods for images, one file each; a file holds `method`.

Examples:
    >>> load("rich_bll_s").title
    'Rich-BLL (S)'
"""

import difflib
import importlib
import pkgutil

from richbll_bench.errors import UnknownMethodError
from richbll_bench.images.task import Method

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names of the files."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Method:
    """The method of that name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownMethodError(f"There is no method {name!r} for images; there are {', '.join(names())}.{hint}")
    found: Method = importlib.import_module(f"{__name__}.{name}").method
    return found
