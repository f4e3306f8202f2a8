"""Which code made a number: the commit of this checkout, and the versions below it."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import richbll

_PACKAGE = Path(__file__).parent
_BELOW = ("torch", "numpy")


@cache
def commit() -> str | None:
    """The commit that this package was imported from, with "+changes" when files differ; None outside a checkout."""
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # no git, or an installed copy that lies inside somebody else's repository
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", ":/") else "")


@cache
def versions() -> dict[str, str]:
    """Python, richbll and what they compute with."""
    found = {"python": platform.python_version(), "richbll": richbll.__version__}
    for name in _BELOW:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
