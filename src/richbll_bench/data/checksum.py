"""sha256, of bytes and of files."""

import hashlib
from pathlib import Path

from richbll_bench.errors import ChecksumError

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The checksum of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_file(path: Path, expected: str) -> None:
    """Raise an error with both checksums unless the file has the one expected."""
    actual = sha256_of(path)
    if actual != expected:
        raise ChecksumError(path, expected, actual)
