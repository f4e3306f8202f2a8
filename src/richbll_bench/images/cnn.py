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


class Block(nn.Sequential):
    """relu(norm(conv(x))), then perhaps pooling, then perhaps dropout."""

    def __init__(self, num_in: int, num_out: int, *, pooled: bool, dropout: float) -> None:
        conv = nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)
        nn.init.normal_(conv.weight, std=(2 / (9 * num_in)) ** 0.5)
        more: list[nn.Module] = [nn.MaxPool2d(2)] if pooled else []
        more += [nn.Dropout(dropout)] if dropout else []
        super().__init__(conv, nn.BatchNorm2d(num_out), nn.ReLU(), *more)


class Pooled(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) → (n, channels)."""
        return x.mean(dim=(2, 3))


def cnn(
    width: int,
    seed: int,
    *,
    num_channels: int = 3,
    num_classes: int = 10,
    dropout: float = 0.0,
    last_dropout: float = _LAST_DROPOUT,
) -> nn.Sequential:
    """A new network, in the memory layout that convolutions are fastest in; `dropout` is that after every block.

    Examples:
        >>> sum(p.numel() for p in cnn(16, seed=0).parameters())
        82234
    """
    with random_numbers(seed, "cnn"):
        channels = [num_channels, *(width * multiple for multiple in _MULTIPLES)]
        pairs = enumerate(pairwise(channels))
        blocks = [Block(*pair, pooled=number in _POOLED, dropout=dropout) for number, pair in pairs]
        readout = Scaled(channels[-1], num_classes, BASE_WIDTH / width)
        nn.init.normal_(readout.weight, std=(4 * BASE_WIDTH) ** -0.5)
        nn.init.zeros_(readout.bias)
    model = nn.Sequential(*blocks, Pooled(), nn.Dropout(last_dropout), readout)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


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
    convolutions = [name for name, p in model.named_parameters() if p.ndim == 4]
    yield from convolutions[1:]
