"""sha256, of bytes and of files."""

import hashlib
from pathlib import Path

_CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The checksum of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
