"""The search order: the folders of $RICHBLL_DATA, then the cache, then the public sources."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from richbll.errors import RichBLLWarning
from richbll_bench.data.dataset import File
from richbll_bench.data.download import Progress
from richbll_bench.data.fetching import fetch, shipped_file
from richbll_bench.data.folders import cache_folder, data_folders
from richbll_bench.errors import ChecksumError, MissingDatasetError


@dataclass(frozen=True)
class Search:
    """What is on this machine: the first file with the right checksum, and what was wrong everywhere before it."""

    path: Path | None
    wrong: tuple[ChecksumError, ...]
    tried: tuple[str, ...]


def search(dataset: File) -> Search:
    """Look into every folder until a file has the right checksum; nothing is downloaded."""
    wrong, tried = [], []
    for folder in [*data_folders(), cache_folder()]:
        path = folder / dataset.file
        if not path.is_file():
            tried.append(f"{path}: no such file.")
            continue
        try:
            dataset.check(path)
        except ChecksumError as error:
            wrong.append(error)
            tried.append(str(error))
        except OSError as error:
            tried.append(f"{path} cannot be read ({error}).")
        else:
            return Search(path, tuple(wrong), tuple(tried))
    return Search(None, tuple(wrong), tuple(tried))


def find(dataset: File, *, fetching: bool = True, timeout: float = 30.0, progress: Progress | None = None) -> Path:
    """The path of a file, downloaded into the cache when it is nowhere (unless `fetching` is False).

    A file with another checksum is never used: a warning says so, and the search goes on.
    """
    found = search(dataset)
    for error in found.wrong:
        warnings.warn(f"{error} It is not used.", RichBLLWarning, stacklevel=3)
    if found.path is not None:
        return found.path
    tried = list(found.tried)
    if fetching:
        try:
            return fetch(dataset, cache_folder(), timeout=timeout, progress=progress)
        except MissingDatasetError as error:
            tried += str(error).splitlines()
    raise MissingDatasetError(
        f"{dataset.name} ({dataset.file}) is not to be had. Tried:"
        + "".join(f"\n  - {line}" for line in tried)
        + f"\nPut it into a folder of $RICHBLL_DATA, or run `richbll data fetch {dataset.name}` with a connection."
    )


def find_all(files: Sequence[File], *, fetching: bool = True, progress: Progress | None = None) -> list[Path]:
    """The paths of several files; an archive that they are made of is downloaded once, and deleted afterwards."""
    paths = [find(file, fetching=fetching, progress=progress) for file in files]
    for file in files:
        for source in file.sources:
            if source.shared:
                shipped_file(source, cache_folder() / file.file).unlink(missing_ok=True)
    return paths
