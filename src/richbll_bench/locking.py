"""One process at a time, by a lock that the operating system takes back when its holder dies."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder, where the platform and the file system have such locks."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        hold(handle)
        yield
    finally:
        os.close(handle)  # gives the lock back


def hold(handle: int) -> None:
    """Wait for the lock on an open file or folder; closing it gives the lock back."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # some network file systems have none
            fcntl.flock(handle, fcntl.LOCK_EX)
