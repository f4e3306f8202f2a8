"""The paper's CNN in μP: seven 3 × 3 convolutions, each with batch normalisation and ReLU.

    3 → w → w → (pool) → 2w → 2w → 2w → (pool) → 4w → 4w → mean over positions → dropout → W a/m + b,   m = w / 128

At w = 128 it has 5.17 million parameters. With AdamW, hidden convolutions learn at rate / m and all else at the rate
itself; the last layer's input is divided by m, so φ^r = (a/m, 1).
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from richbll_bench.regression.network import Scaled
from richbll_bench.regression.seeds import random_numbers

BASE_WIDTH = 128  # the paper's
_MULTIPLES = (1, 1, 2, 2, 2, 4, 4)  # of the width, by convolution
_POOLED = (1, 4)  # the convolutions before a pooling
_LAST_DROPOUT = 0.2


Convolution = Callable[[int, int], nn.Module]  # channels in and out


def convolution(num_in: int, num_out: int) -> nn.Conv2d:
    """3 × 3, no bias, weights by He's rule."""
    return initialised(nn.Conv2d(num_in, num_out, 3, padding=1, bias=False))


def initialised(layer: nn.Conv2d) -> nn.Conv2d:
    """The same layer with weights ~ N(0, 2 / (9 channels))."""
    nn.init.normal_(layer.weight, std=(2 / (9 * layer.in_channels)) ** 0.5)
    return layer


class Block(nn.Sequential):
    """relu(norm(conv(x))), then perhaps pooling, then perhaps dropout."""

    def __init__(self, conv: nn.Module, num_out: int, *, pooled: bool, dropout: float) -> None:
        more: list[nn.Module] = [nn.MaxPool2d(2)] if pooled else []
        more += [nn.Dropout(dropout)] if dropout else []
        super().__init__(conv, nn.BatchNorm2d(num_out), nn.ReLU(), *more)


class Pooled(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) → (n, channels)."""
        return x.mean(dim=(2, 3))


def body(width: int, num_channels: int = 3, dropout: float = 0.0, conv: Convolution = convolution) -> list[nn.Module]:
    """All before the last layer's dropout; random numbers are the caller's."""
    channels = [num_channels, *(width * multiple for multiple in _MULTIPLES)]
    blocks = [
        Block(conv(*pair), pair[1], pooled=number in _POOLED, dropout=dropout)
        for number, pair in enumerate(pairwise(channels))
    ]
    return [*blocks, Pooled()]


def readout(width: int, num_classes: int) -> nn.Linear:
    """W a/m + b."""
    layer = Scaled(_MULTIPLES[-1] * width, num_classes, BASE_WIDTH / width)
    nn.init.normal_(layer.weight, std=(_MULTIPLES[-1] * BASE_WIDTH) ** -0.5)
    nn.init.zeros_(layer.bias)
    return layer


def in_its_layout(model: nn.Sequential) -> nn.Sequential:
    """The same network in the memory layout that convolutions are fastest in."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def cnn(width: int, seed: int, *, num_classes: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """A new network; `dropout` is that after every block, beside the paper's before the last layer.

    Examples:
        >>> sum(p.numel() for p in cnn(16, seed=0).parameters())
        82234
    """
    with random_numbers(seed, "cnn"):
        model = nn.Sequential(*body(width, dropout=dropout), nn.Dropout(_LAST_DROPOUT), readout(width, num_classes))
    return in_its_layout(model)


def parameter_groups(model: nn.Module, rate: float, weight_decay: float, width: int) -> list[dict[str, Any]]:
    """For AdamW: hidden convolutions have rate / m and decay × m; norms, biases and the first layer are as they are."""
    m = width / BASE_WIDTH

    def group(where: Callable[[str, Tensor], bool], factor: float) -> dict[str, Any]:
        found = [p for name, p in model.named_parameters() if where(name, p)]
        return {"params": found, "lr": rate * factor, "weight_decay": weight_decay / factor}

    hidden = set(hidden_weights(model))
    return [group(lambda n, _: n in hidden, 1 / m), group(lambda n, _: n not in hidden, 1.0)]


def hidden_weights(model: nn.Module) -> Iterator[str]:
    """The names of weights between two layers whose width varies: all convolutions but the first."""
    convolutions = [name for name, p in model.named_parameters() if p.ndim == 4 and name.endswith("weight")]
    yield from convolutions[1:]
