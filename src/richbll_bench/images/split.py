"""Training, validation and test images of one seed, and bytes made into what a network is given."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll_bench import image_datasets
from richbll_bench.images.reading import Images
from richbll_bench.regression.seeds import derived_seed

_VALIDATION = 0.1


@dataclass(frozen=True)
class Scaling:
    """(pixel / 255 − mean) / std, by channel."""

    mean: Tensor  # (3, 1, 1)
    std: Tensor  # (3, 1, 1)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Bytes (n, 3, 32, 32) as float32, in the memory layout of the CNN."""
        x = pixels.to(torch.float32, memory_format=torch.channels_last)
        return x.sub_(255 * self.mean).div_(255 * self.std)


@dataclass(frozen=True)
class Split:
    """The images of one seed."""

    train: Images
    validation: Images
    test: Images
    scaling: Scaling
    classes: tuple[str, ...]


def scaling_of(name: str) -> Scaling:
    """By the usual statistics of a data set; those of grey images hold for all three channels."""
    dataset = image_datasets.declaration(name)
    mean, std = (torch.tensor(values).expand(3).view(3, 1, 1) for values in (dataset.mean, dataset.std))
    return Scaling(mean, std)


def split(name: str, seed: int, num_images: int | None = None, num_test: int | None = None) -> Split:
    """A tenth of the training images for validation, by seed; `num_images` limits both, `num_test` the test images."""
    everything, test = (image_datasets.load(name, part).as_color() for part in ("train", "test"))
    generator = torch.Generator().manual_seed(derived_seed(seed, "split"))
    order = torch.randperm(len(everything), generator=generator)[:num_images]
    num_validation = round(_VALIDATION * len(order))
    train, validation = everything.rows(order[num_validation:]), everything.rows(order[:num_validation])
    classes = image_datasets.declaration(name).classes
    return Split(train, validation, test.rows(slice(num_test)), scaling_of(name), classes)


def batches(images: Images, scaling: Scaling, batch_size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """In their order, as inputs and labels."""
    for pixels, labels in zip(
        torch.split(images.pixels, batch_size), torch.split(images.labels, batch_size), strict=True
    ):
        yield scaling(pixels), labels
