"""Where data lies on this machine: the folders of $RICHBLL_DATA, then the cache."""

import os
import sys
from pathlib import Path


def data_folders() -> list[Path]:
    """The folders of $RICHBLL_DATA, separated as in PATH, in their order."""
    return [Path(part).expanduser() for part in os.environ.get("RICHBLL_DATA", "").split(os.pathsep) if part]


def cache_folder() -> Path:
    """Where downloads go: $RICHBLL_CACHE, or the platform's folder for caches."""
    own = os.environ.get("RICHBLL_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "richbll" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "richbll"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "richbll"
