"""The methods, one file each; a file holds `method`. "NAME_grid" is the same with the noise chosen from a grid.

Examples:
    >>> load("rich_bll").title, load("rich_bll_grid").title
    ('Rich-BLL', 'Rich-BLL, noise from a grid')
"""

from dataclasses import replace

from richbll_bench.errors import UnknownMethodError
from richbll_bench.found import files_in, module_of
from richbll_bench.posthoc import PostHoc
from richbll_bench.regression.task import Method

__all__ = ["load", "names"]

_GRID = "_grid"


def names() -> list[str]:
    """The names of the files."""
    return files_in(__path__)


def load(name: str) -> Method:
    """The method of that name."""
    plain = name.removesuffix(_GRID)
    found: Method = module_of(__name__, plain, names(), UnknownMethodError, f"There is no method {name!r}").method
    if plain == name:
        return found
    if not isinstance(found, PostHoc):
        raise UnknownMethodError(f"{plain} does not take its noise from a grid.")
    return replace(found, name=name, title=f"{found.title}, noise from a grid", grid=True)
