"""The backbone: two hidden ReLU layers in μP.

    f(x) = n^(-1/2) w₃ relu(w₂ relu(n^(1/2) w₁ x + b₁) + b₂) + b₃,   w₁ ~ N(0, 1/(n d)), w₂, w₃ ~ N(0, 1/n)

for n units and d inputs, so φ^r = (a / √n, 1). The rate of w₂ under Adam falls with n / 50, the others' do not.
"""

import torch
from torch import Tensor, nn

_BASE_WIDTH = 50


class Scaled(nn.Linear):
    """A linear layer whose input is multiplied by a number."""

    def __init__(self, num_inputs: int, num_outputs: int, factor: float) -> None:
        super().__init__(num_inputs, num_outputs)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """W (factor · x) + b."""
        return super().forward(self.factor * x)


def backbone(num_inputs: int, seed: int, width: int = 50) -> nn.Sequential:
    """A new network; the random numbers of the caller are not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = Scaled(num_inputs, width, width**0.5)
        second, readout = nn.Linear(width, width), Scaled(width, 1, width**-0.5)
        nn.init.normal_(first.weight, std=(width * num_inputs) ** -0.5)
        for layer in (second, readout):
            nn.init.normal_(layer.weight, std=width**-0.5)
        for layer in (first, second, readout):
            nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), readout)


def rate(name: str, shape: tuple[int, ...]) -> float:
    """How many times the learning rate a parameter of the backbone moves with."""
    return _BASE_WIDTH / shape[0] if name == "2.weight" else 1.0
