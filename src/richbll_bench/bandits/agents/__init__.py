"""The agents, one file each; a file holds `kind`.

Examples:
    >>> load("rich_bll").title
    'Rich-BLL'
"""

from richbll_bench.bandits.agent import Kind
from richbll_bench.errors import UnknownAgentError
from richbll_bench.found import files_in, module_of

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names of the files."""
    return files_in(__path__)


def load(name: str) -> Kind:
    """The agent of that name."""
    found: Kind = module_of(__name__, name, names(), UnknownAgentError, f"There is no agent {name!r}").kind
    return found
