"""Networks whose weights are independent Gaussians q(w) = N(μ, σ²) with prior N(0, 1), for Bayes by Backprop.

A layer's outputs are drawn instead of its weights (local reparametrisation), for every row anew:

    h = W̄x + b̄ + (σ_W² x² + σ_b²)^½ ε,   ε ~ N(0, I)
    KL(q ‖ p) = Σ ½ (σ² + μ² − 1) − log σ

Here a weight is what acts in the network, after μP's factor; its mean is trained before the factor, as in the backbone.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from richbll_bench.regression.network import backbone

_FIRST_STD = 0.01  # of every weight, before training


class GaussianLinear(nn.Module):
    """A linear layer with Gaussian weights, the mean of which is a factor times a parameter."""

    def __init__(self, start: nn.Linear, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.weight, self.bias = nn.Parameter(start.weight.detach()), nn.Parameter(start.bias.detach())
        self.weight_log_std = nn.Parameter(torch.full_like(start.weight, math.log(_FIRST_STD)))
        self.bias_log_std = nn.Parameter(torch.full_like(start.bias, math.log(_FIRST_STD)))

    def forward(self, x: Tensor) -> Tensor:
        """A draw of the outputs."""
        mean = linear(self.factor * x, self.weight, self.bias)
        variance = linear(x.square(), (2 * self.weight_log_std).exp(), (2 * self.bias_log_std).exp())
        return mean + variance.sqrt() * torch.randn(mean.shape)

    def kl(self) -> Tensor:
        """Of all weights."""  # ()
        return _kl(self.factor * self.weight, self.weight_log_std) + _kl(self.bias, self.bias_log_std)


def _kl(mean: Tensor, log_std: Tensor) -> Tensor:
    return (0.5 * ((2 * log_std).exp() + mean.square() - 1) - log_std).sum()


class GaussianNetwork(nn.Module):
    """The backbone with Gaussian weights, and the noise that it learns."""

    def __init__(self, num_inputs: int, seed: int, width: int, target_std: float) -> None:
        super().__init__()
        layers: list[Any] = list(backbone(num_inputs, seed, width))
        first, relu, second, _, readout = layers
        self.layers = nn.Sequential(
            GaussianLinear(first, width**0.5),
            relu,
            GaussianLinear(second, 1.0),
            relu,
            GaussianLinear(readout, width**-0.5),
        )
        self.log_noise = nn.Parameter(torch.tensor([math.log(target_std)]))  # (1,) log σ

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A draw of the outputs, the noise variance (1,) and the KL ()."""
        kl = sum((layer.kl() for layer in self.layers if isinstance(layer, GaussianLinear)), torch.zeros(()))
        return self.layers(x), (2 * self.log_noise).exp(), kl
