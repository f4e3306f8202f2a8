"""A file of JSON objects, one per line, that is only ever appended to, and survives being killed while writing.

A line is written in one piece (O_APPEND) and under a lock, so several processes may append at once. When one is killed
in the middle of a line, readers skip the unfinished line with a warning, and whoever appends next removes it.
"""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from richbll.errors import RichBLLWarning
from richbll_bench.errors import RecordError
from richbll_bench.locking import hold

_BLOCK = 1 << 16

Object = dict[str, Any]


def append_line(path: Path, content: Object) -> None:
    """Add one object; it is on the disk, whole, when this returns."""
    line = json.dumps(content, allow_nan=False).encode("ascii") + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _opened(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as handle:
            line = _repair(handle, path) + line
            _write(handle, line)
    except OSError as error:
        raise RecordError(f"{path} cannot be appended to ({error}).") from error


def read_lines(path: Path) -> list[tuple[int, Object]]:
    """The objects of a file with their line numbers; a last line that was never finished is skipped with a warning."""
    try:
        with _opened(path, os.O_RDONLY) as handle, os.fdopen(os.dup(handle), "rb") as file:
            *lines, rest = file.read().split(b"\n")
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error}).") from error
    found = []
    for number, line in enumerate(lines, start=1):
        content = _object(line)
        if content is None and line.strip():
            raise RecordError(f"{path}, line {number} is not a JSON object: {line[:60]!r}. Mend or delete the line.")
        if content is not None:
            found.append((number, content))
    last = _object(rest)  # only its line end may be missing
    if last is not None:
        found.append((len(lines) + 1, last))
    elif rest:
        _warn(f"{path} ends with an unfinished line of {len(rest):,} bytes, which is skipped.")
    return found


def _object(line: bytes) -> Object | None:
    """What a line holds; the beginning of an object is never an object itself, so an unfinished line is None."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _repair(handle: int, path: Path) -> bytes:
    """Remove an unfinished last line. Returns what must come before a new one: a line end, if only that is missing."""
    size = os.fstat(handle).st_size
    tail, at = b"", size
    while at > 0 and b"\n" not in tail:
        step = min(_BLOCK, at)
        at -= step
        os.lseek(handle, at, os.SEEK_SET)
        tail = os.read(handle, step) + tail
    rest = tail.rpartition(b"\n")[2]
    if not rest or _object(rest) is not None:
        return b"\n" if rest else b""
    os.ftruncate(handle, size - len(rest))
    _warn(f"{path} ended with an unfinished line of {len(rest):,} bytes, which is removed.")
    return b""


def _write(handle: int, line: bytes) -> None:
    """All of the line or, when the disk is full, none of it."""
    size = os.fstat(handle).st_size
    try:
        written = os.write(handle, line)
        if written != len(line):
            raise OSError(f"{written} of {len(line)} bytes were written")
    except OSError:
        os.ftruncate(handle, size)
        raise
    os.fsync(handle)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A file's handle, with its lock."""
    handle = os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
    try:
        hold(handle)
        yield handle
    finally:
        os.close(handle)


def _warn(message: str) -> None:
    warnings.warn(message, RichBLLWarning, stacklevel=4)
