"""One address into one file: checked, resumed where it broke off, and there only when it is whole."""

import os
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from richbll import __version__
from richbll_bench.data.checksum import sha256_of
from richbll_bench.errors import ChecksumError, DownloadError
from richbll_bench.locking import locked

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server says

_CHUNK = 1 << 16
_ATTEMPTS = 3
_RANGE_NOT_SATISFIABLE = 416


class _BrokenOffError(Exception):
    """The connection ended before the file did."""


def download(
    url: str, destination: Path, sha256: str, *, timeout: float = 30.0, progress: Progress | None = None
) -> None:
    """Fetch `url` into `destination`, which appears when it is whole and has the right checksum, and not before.

    What arrives is kept in `destination` + ".part". When the connection breaks, or the process is killed, the next
    try asks for the rest only; a server that cannot send a rest sends all. Of several processes that want the same
    file, one downloads and the others wait.
    """
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with locked(destination.parent):
            if destination.is_file() and sha256_of(destination) == sha256:
                return  # another process was faster
            _fill(url, part, sha256, timeout, progress)
            os.replace(part, destination)
    except OSError as error:
        raise DownloadError(url, f"{destination} cannot be written ({error}).") from error


def _fill(url: str, part: Path, sha256: str, timeout: float, progress: Progress | None) -> None:
    """Leave the right bytes in `part`, or raise."""
    if _size(part) and sha256_of(part) == sha256:
        return  # whole already, and killed just before it got its name
    for left in reversed(range(_ATTEMPTS)):
        try:
            started_at = _transfer(url, part, timeout, progress)
        except _BrokenOffError as error:
            if not left:
                raise DownloadError(url, f"{error} It is kept in {part}: try again to get the rest.") from error
            continue
        actual = sha256_of(part)
        if actual == sha256:
            return
        part.unlink()
        if not left or not started_at:  # a rest that was put to other bytes deserves another try, a whole file does not
            raise ChecksumError(url, sha256, actual)


def _transfer(url: str, part: Path, timeout: float, progress: Progress | None) -> int:
    """Append what is missing to `part`; returns how many bytes were there already and could be kept."""
    start = _size(part)
    try:
        with _open(url, start, timeout) as response:
            if start and not _continues(response, start):
                start = 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            received = start
            with part.open("ab" if start else "wb") as file:
                while chunk := _read(response, received, total):
                    file.write(chunk)
                    received += len(chunk)
                    if progress is not None:
                        progress(received, total)
                file.flush()
                os.fsync(file.fileno())
    except HTTPError as error:
        error.close()
        if error.code == _RANGE_NOT_SATISFIABLE and start:  # longer than the file itself: not a part of it
            part.unlink()
            return _transfer(url, part, timeout, progress)
        raise DownloadError(url, f"the server answered {error.code} {error.reason}.") from error
    if total is not None and received < total:
        raise _BrokenOffError(f"The connection ended after {received:,} of {total:,} bytes.")
    return start


def _open(url: str, start: int, timeout: float) -> HTTPResponse:
    headers = {"User-Agent": f"richbll/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise DownloadError(url, f"no connection ({reason}).") from error
    return response


def _continues(response: HTTPResponse, start: int) -> bool:
    """Whether the server sends the rest that was asked for, and not the whole file again."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _read(response: HTTPResponse, received: int, total: int | None) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, HTTPException) as error:
        of = "" if total is None else f" of {total:,}"
        raise _BrokenOffError(f"The connection broke after {received:,}{of} bytes ({error}).") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
