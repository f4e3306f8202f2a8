"""What an image data set is: the files of its two parts, how they are read, and its statistics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from richbll_bench.data.checksum import sha256_of
from richbll_bench.data.dataset import File
from richbll_bench.data.finding import find_all
from richbll_bench.images.reading import Images


@dataclass(frozen=True)
class ImageDataset:
    """A declaration; nothing is read or fetched until `image_datasets.load`."""

    name: str
    title: str
    train: tuple[File, ...]  # none where only the test images are used
    test: tuple[File, ...]
    read: Callable[[Sequence[Path]], Images]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # by channel, of pixels from 0 to 1
    std: tuple[float, ...]
    target: str = "class"

    @property
    def files(self) -> tuple[File, ...]:
        """All of them."""
        return self.train + self.test

    def part(self, name: str, *, fetching: bool = True) -> Images:
        """The images of "train" or "test"."""
        files = {"train": self.train, "test": self.test}[name]
        return self.read(find_all(files, fetching=fetching))

    def is_public(self, part: str) -> bool:
        """Whether the files here are the public ones to the byte, not others whose content is taken for the same."""
        files = {"train": self.train, "test": self.test}[part]
        return all(sha256_of(path) == file.sha256 for path, file in zip(find_all(files), files, strict=True))
