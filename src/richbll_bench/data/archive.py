"""A file out of an archive, for sources that ship many files as one."""

import io
import tarfile
from collections.abc import Callable

from richbll_bench.errors import ContentError


def member(name: str) -> Callable[[bytes], bytes]:
    """A converter of a tar archive, compressed or not, into one of its files."""

    def convert(content: bytes) -> bytes:
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                file = archive.extractfile(name)
                if file is None:
                    raise ContentError(f"{name} is not a file of the archive.")
                return file.read()
        except (tarfile.TarError, KeyError, EOFError) as error:
            raise ContentError(f"{name} cannot be read from the archive ({error}).") from error

    return convert
