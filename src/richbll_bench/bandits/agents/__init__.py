"""The agents, one file each; a file holds `kind`.

Examples:
    >>> load("rich_bll").title
    'Rich-BLL'
"""

import difflib
import importlib
import pkgutil

from richbll_bench.bandits.agent import Kind
from richbll_bench.errors import UnknownAgentError

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names of the files."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Kind:
    """The agent of that name."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownAgentError(f"There is no agent {name!r}; there are {', '.join(names())}.{hint}")
    found: Kind = importlib.import_module(f"{__name__}.{name}").kind
    return found
