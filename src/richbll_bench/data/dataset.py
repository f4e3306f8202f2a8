"""What a data set is: a file with a checksum, where it comes from, and how it is read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from richbll_bench.data.reading import Examples, read_csv
from richbll_bench.errors import ContentError


@dataclass(frozen=True)
class Source:
    """A public address, the checksum of what it serves, and what makes our file of it (None: it is our file)."""

    url: str
    sha256: str
    convert: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True)
class Dataset:
    """A declaration; nothing is read or fetched until `datasets.load`."""

    name: str
    title: str
    file: str  # inside a data folder, with forward slashes
    sha256: str
    sources: tuple[Source, ...]
    target: str
    read: Callable[[Path], Examples]

    def __post_init__(self) -> None:
        for source in self.sources:
            if source.convert is None and source.sha256 != self.sha256:
                raise ContentError(
                    f"{self.name}: {source.url} serves sha256 {source.sha256}, the file has {self.sha256}: "
                    "give one checksum, or what converts the one into the other."
                )


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
    return Dataset(module.rpartition(".")[2], title, file, sha256, full, target, read)
