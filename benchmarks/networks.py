"""The networks that benchmarks run on, each with a batch of inputs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Subject:
    """A network and inputs for it."""

    model: nn.Module
    x: Tensor


def mlp(num_inputs: int, width: int, batch: int) -> Subject:
    """Two hidden ReLU layers and one output."""
    model = nn.Sequential(
        nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    return Subject(model.eval(), torch.randn(batch, num_inputs))


def cnn(width: int, batch: int, num_outputs: int = 1) -> Subject:
    """The paper's seven convolutions (w, w, 2w, 2w, 2w, 4w, 4w) on 32 × 32 images, with a linear read-out."""
    layers: list[nn.Module] = []
    channels = 3
    for number, factor in enumerate((1, 1, 2, 2, 2, 4, 4), start=1):
        layers += [nn.Conv2d(channels, factor * width, 3, padding=1), nn.BatchNorm2d(factor * width), nn.ReLU()]
        channels = factor * width
        if number in (2, 5):
            layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, num_outputs)]
    return Subject(nn.Sequential(*layers).eval(), torch.randn(batch, 3, 32, 32))


class Transformer(nn.Module):
    """Four encoder layers of width 128 over 32 tokens, mean-pooled, with one output."""

    def __init__(self, width: int = 128, depth: int = 4, length: int = 32) -> None:
        super().__init__()
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (n, 32, 128) to (n, 1)."""
        output: Tensor = self.head(self.encoder(x + self.position).mean(dim=1))
        return output


def transformer(batch: int) -> Subject:
    """The small transformer."""
    return Subject(Transformer().eval(), torch.randn(batch, 32, 128))


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "MLP 8-50-50-1, batch 8192": lambda: mlp(8, 50, 8192),
    "MLP 8-50-50-1, batch 4096": lambda: mlp(8, 50, 4096),
    "MLP 8-50-50-1, batch 1024": lambda: mlp(8, 50, 1024),
    "MLP 8-50-50-1, batch 256": lambda: mlp(8, 50, 256),
    "MLP 100-1024-1024-1, batch 512": lambda: mlp(100, 1024, 512),
    "CNN width 16, batch 64": lambda: cnn(16, 64),
    "CNN width 32, batch 64": lambda: cnn(32, 64),
    "CNN width 32, batch 64, 10 outputs": lambda: cnn(32, 64, 10),
    "transformer d 128, batch 64": lambda: transformer(64),
}
# Where the price of a call, not arithmetic, decides: the limit is shown, and is not held.
FIXED_COST = {f"MLP 8-50-50-1, batch {size}" for size in (4096, 1024, 256)}
