"""From a public source into the cache, converted where the source ships another format."""

from pathlib import Path

from richbll_bench.data.checksum import check_file
from richbll_bench.data.dataset import Dataset, Source
from richbll_bench.data.download import Progress, download
from richbll_bench.errors import ChecksumError, DatasetError, DownloadError, MissingDatasetError
from richbll_bench.replacing import replacing


def fetch(dataset: Dataset, folder: Path, *, timeout: float = 30.0, progress: Progress | None = None) -> Path:
    """Download the file of a data set into a folder from the first source that has it."""
    destination = folder / dataset.file
    failures: list[DatasetError] = []
    for source in dataset.sources:
        try:
            _fetch_from(source, destination, dataset.sha256, timeout, progress)
            return destination
        except (ChecksumError, DownloadError) as error:
            failures.append(error)
    raise MissingDatasetError("\n".join(map(str, failures)) or "no public source is known.")


def _fetch_from(source: Source, destination: Path, sha256: str, timeout: float, progress: Progress | None) -> None:
    if source.convert is None:
        download(source.url, destination, sha256, timeout=timeout, progress=progress)
        return
    shipped = destination.with_name(destination.name + ".source")
    download(source.url, shipped, source.sha256, timeout=timeout, progress=progress)
    try:
        with replacing(destination) as temporary:
            temporary.write_bytes(source.convert(shipped.read_bytes()))
            check_file(temporary, sha256)
    except OSError as error:
        raise DownloadError(source.url, f"{destination} cannot be written ({error}).") from error
    shipped.unlink(missing_ok=True)
