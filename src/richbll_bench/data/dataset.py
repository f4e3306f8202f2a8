"""What a data set is: files with checksums, where they come from, and how they are read."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from richbll_bench.data.checksum import sha256_of
from richbll_bench.data.reading import Examples, read_csv
from richbll_bench.errors import ChecksumError, ContentError


@dataclass(frozen=True)
class Source:
    """A public address, the checksum of what it serves, and what makes our file of it (None: it is our file)."""

    url: str
    sha256: str
    convert: Callable[[bytes], bytes] | None = None
    shared: bool = False  # several files are made of what it serves, which is kept until all of them are there


@dataclass(frozen=True)
class Packing:
    """What is inside a file, where the same content is packed in several ways: how to unpack it, and its checksum."""

    unpack: Callable[[Path], bytes]
    sha256: str


@dataclass(frozen=True)
class File:
    """One file of a data set, known by its checksum."""

    name: str  # the data set's
    file: str  # inside a data folder, with forward slashes
    sha256: str
    sources: tuple[Source, ...]
    packing: Packing | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for source in self.sources:
            if source.convert is None and source.sha256 != self.sha256:
                raise ContentError(
                    f"{self.name}: {source.url} serves sha256 {source.sha256}, the file has {self.sha256}: "
                    "give one checksum, or what converts the one into the other."
                )

    def check(self, path: Path) -> None:
        """Raise an error with both checksums unless this is the file, or holds what the file holds."""
        actual = sha256_of(path)
        if actual == self.sha256:
            return
        if self.packing is not None and _inside(path, self.packing) == self.packing.sha256:
            return
        raise ChecksumError(path, self.sha256, actual)


def _inside(path: Path, packing: Packing) -> str | None:
    try:
        return hashlib.sha256(packing.unpack(path)).hexdigest()
    except ContentError:
        return None  # not even a file of that kind


@dataclass(frozen=True)
class Dataset(File):
    """A table of one file; nothing is read or fetched until `datasets.load`."""

    title: str
    target: str
    read: Callable[[Path], Examples]

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the data set."""
        return (self,)


def csv_dataset(
    module: str,
    *,
    title: str,
    file: str,
    sha256: str,
    target: str,
    separator: str = ",",
    sources: Sequence[Source | str] = (),
) -> Dataset:
    """Declare a table of numbers with a header line, one column of which is the target.

    Args:
        module: pass `__name__`: the file's name is the data set's name.
        title: the name for people.
        file: where it lies inside a data folder, such as "uci/boston.csv".
        sha256: the checksum of that file.
        target: the column to predict; all others are inputs, in the file's order.
        separator: what stands between two numbers.
        sources: where it can be downloaded; an address alone serves the very file.

    Examples:
        >>> csv_dataset("my.own.yacht", title="Yacht", file="yacht.csv", sha256="0" * 64, target="resistance").name
        'yacht'
    """
    full = tuple(Source(source, sha256) if isinstance(source, str) else source for source in sources)
    read = partial(read_csv, target=target, separator=separator)
    name = module.rpartition(".")[2]
    return Dataset(name, file, sha256, full, title=title, target=target, read=read)
