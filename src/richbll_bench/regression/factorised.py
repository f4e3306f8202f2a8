"""Networks whose weights are independent Gaussians q(w) = N(μ, σ²) with prior N(0, s²), for Bayes by Backprop.

A layer's outputs are drawn instead of its weights (local reparametrisation), for every row anew:

    h = W̄x + b̄ + (σ_W² x² + σ_b²)^½ ε,   ε ~ N(0, I)
    KL(q ‖ p) = Σ ½ (σ² + μ²) / s² − ½ − log(σ / s)

The prior is N(0, 1) for a weight as it acts in the network, after μP's factor: s is n^(-½) for w₁, 1 for w₂ and for
biases, and n^½ for w₃.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from richbll_bench.regression.network import backbone

# Before training. With more noise the prior wins at once, and the network never finds the targets.
_FIRST_STD = 0.01  # σ / s
_FIRST_NOISE = 0.1  # of the targets' standard deviation


class GaussianLinear(nn.Module):
    """A linear layer with Gaussian weights whose input is multiplied by a number."""

    prior_std: Tensor  # (c, d + 1), the bias last

    def __init__(self, start: nn.Linear, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.weight, self.bias = nn.Parameter(start.weight.detach()), nn.Parameter(start.bias.detach())
        prior_std = torch.full((start.out_features, start.in_features + 1), 1 / factor)
        prior_std[:, -1] = 1.0
        self.register_buffer("prior_std", prior_std)
        self.log_ratio = nn.Parameter(torch.full_like(prior_std, math.log(_FIRST_STD)))  # log(σ / s)

    def forward(self, x: Tensor) -> Tensor:
        """A draw of the outputs."""
        x = self.factor * x
        variance = (self.log_ratio.exp() * self.prior_std).square()  # (c, d + 1)
        spread = (nn.functional.linear(x.square(), variance[:, :-1]) + variance[:, -1]).sqrt()
        mean = nn.functional.linear(x, self.weight, self.bias)
        return mean + spread * torch.randn(mean.shape)

    def kl(self) -> Tensor:
        """Of all weights."""  # ()
        mean = torch.cat([self.weight, self.bias.unsqueeze(1)], dim=1) / self.prior_std
        return (0.5 * ((2 * self.log_ratio).exp() + mean.square() - 1) - self.log_ratio).sum()


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
        self.log_noise = nn.Parameter(torch.tensor([math.log(_FIRST_NOISE * target_std)]))  # (1,) log σ

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A draw of the outputs, the noise variance (1,) and the KL ()."""
        kl = sum((layer.kl() for layer in self.layers if isinstance(layer, GaussianLinear)), torch.zeros(()))
        return self.layers(x), (2 * self.log_noise).exp(), kl
