"""The image data sets, one file each. A file's name is the data set's name.

Examples:
    >>> names()
    ['cifar10', 'cifar100', 'fashion_mnist', 'mnist', 'svhn']
    >>> declaration("cifar10").classes[3]
    'cat'
"""

from richbll_bench.errors import ContentError, UnknownDatasetError
from richbll_bench.found import files_in, module_of
from richbll_bench.images.dataset import ImageDataset
from richbll_bench.images.reading import Images

__all__ = ["declaration", "load", "names"]


def names() -> list[str]:
    """The names that `load` takes."""
    return files_in(__path__)


def declaration(name: str) -> ImageDataset:
    """What the file of that name declares."""
    found: ImageDataset = module_of(
        __name__, name, names(), UnknownDatasetError, f"There are no images {name!r}"
    ).dataset
    return found


def load(name: str, part: str, *, fetching: bool = True) -> Images:
    """The images of "train" or "test": from $RICHBLL_DATA, the cache, or the public source."""
    dataset = declaration(name)
    if not getattr(dataset, part):
        raise ContentError(f"Of {name} only the test images are used here, not {part!r}.")
    return dataset.part(part, fetching=fetching)
