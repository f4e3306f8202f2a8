"""The libraries that we are compared with: found in benchmarks/.peers when `install_peers.py` has put them there."""

import importlib
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / ".peers"


class NotMeasuredError(Exception):
    """A row that is left out, and why."""


def peer(module: str) -> Any:
    """A peer's module, or the reason why its rows are left out."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # last, so that nothing of the venv is replaced
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotMeasuredError(f"{module} is not there ({error}): python benchmarks/install_peers.py") from error


def peer_versions() -> dict[str, str]:
    """Name and version of everything in the folder."""
    return {d.name: d.version for d in sorted(distributions(path=[str(FOLDER)]), key=lambda d: d.name.lower())}
