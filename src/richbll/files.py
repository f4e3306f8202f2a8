"""Safetensors with JSON in the header, written whole or not at all. No pickle."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from richbll.errors import RichBLLError

Failure = type[RichBLLError]


def write(path: Path, tensors: dict[str, Tensor], key: str, header: dict[str, Any], failure: Failure) -> None:
    """Write to a temporary file beside `path`, then rename: whatever happens, the old file or the new one is there."""
    check_place(path, failure)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
    except OSError as error:
        raise failure(f"{path} cannot be written ({error}).") from error
    try:
        save_file(tensors, temporary, metadata={key: json.dumps(header)})
        os.chmod(temporary, 0o666 & ~_umask())
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except (OSError, SafetensorError) as error:
        Path(temporary).unlink(missing_ok=True)
        raise failure(f"{path} cannot be written ({error}).") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def check_place(path: Path, failure: Failure) -> None:
    """What can be told wrong about a path before there is anything to write."""
    if not path.parent.is_dir():
        raise failure(f"{path} cannot be written: there is no such folder as {path.parent}.")
    if path.is_dir():
        raise failure(f"{path} cannot be written: it is a folder.")


def remove_leftovers(path: Path) -> None:
    """Delete what a killed `write` to this path has left beside it."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.tmp")  # mkstemp's names
    for other in path.parent.iterdir():
        if pattern.fullmatch(other.name):
            other.unlink(missing_ok=True)


@contextmanager
def reading(path: Path, key: str, failure: Failure) -> Iterator[tuple[dict[str, Any], Any]]:
    """The header under a key, and the open file; whatever is wrong with it is a failure that names it."""
    if not path.is_file():
        raise failure(f"{path}: no such file.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            if key not in metadata:
                raise failure(
                    f"{path} is a safetensors file, but not one that richbll wrote (with '{key}' in its header)."
                )
            header = json.loads(metadata[key])
            if not isinstance(header, dict):
                raise failure(f"{path} has format {type(header).__name__!r}, which richbll does not write.")
            yield header, file
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise failure(f"{path} cannot be read: truncated, or not a safetensors file ({error}).") from error


def _umask() -> int:
    """The permissions that the process withholds from new files; mkstemp withholds more."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: str | Path) -> None:
    """To the disk itself, so that a power cut does not undo it; folders only where they can be opened."""
    if os.name != "posix" and Path(path).is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
