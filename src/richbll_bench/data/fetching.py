"""From a public source into the cache, converted where the source ships another format."""

from pathlib import Path

from richbll_bench.data.dataset import File, Source
from richbll_bench.data.download import Progress, download
from richbll_bench.errors import ChecksumError, DatasetError, DownloadError, MissingDatasetError
from richbll_bench.replacing import replacing


def fetch(dataset: File, folder: Path, *, timeout: float = 30.0, progress: Progress | None = None) -> Path:
    """Download a file of a data set into a folder from the first source that has it."""
    destination = folder / dataset.file
    failures: list[DatasetError] = []
    for source in dataset.sources:
        try:
            _fetch_from(source, dataset, destination, timeout, progress)
            return destination
        except (ChecksumError, DownloadError) as error:
            failures.append(error)
    raise MissingDatasetError("\n".join(map(str, failures)) or "no public source is known.")


def _fetch_from(source: Source, wanted: File, destination: Path, timeout: float, progress: Progress | None) -> None:
    if source.convert is None:
        download(source.url, destination, wanted.sha256, timeout=timeout, progress=progress)
        return
    shipped = shipped_file(source, destination)
    download(source.url, shipped, source.sha256, timeout=timeout, progress=progress)
    try:
        with replacing(destination) as temporary:
            temporary.write_bytes(source.convert(shipped.read_bytes()))
            wanted.check(temporary)
    except OSError as error:
        raise DownloadError(source.url, f"{destination} cannot be written ({error}).") from error
    if not source.shared:
        shipped.unlink(missing_ok=True)


def shipped_file(source: Source, destination: Path) -> Path:
    """Where what a source ships lies until our file is made of it."""
    own_name = source.url.rpartition("/")[2] if source.shared else destination.name
    return destination.with_name(own_name + ".source")
