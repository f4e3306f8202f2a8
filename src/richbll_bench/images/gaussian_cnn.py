"""The CNN with a Gaussian for every weight of a convolution and of the last layer, for Bayes by Backprop.

    W = w̄ + σ ε,   ε ~ N(0, I) anew for every batch,   KL(q ‖ p) = Σ log(s/σ) + (σ² + w̄²) / 2s² − ½

with the prior N(0, s²), s² the variance that a layer's weights begin with. One draw for a batch costs what the plain
CNN costs; a draw for every image, by its outputs, would cost four times that.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from richbll_bench.images.cnn import body, in_its_layout, initialised, readout
from richbll_bench.regression.seeds import random_numbers

_FIRST_STD = 0.1  # of the prior's


class Uncertain(nn.Module):
    """A weight's mean is the layer's parameter; its standard deviation is learned beside it."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor
        self.prior_std = float(layer.weight.detach().std())
        self.log_std = nn.Parameter(torch.full_like(layer.weight, math.log(_FIRST_STD * self.prior_std)))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of a draw of the weights."""
        weight = self.layer.weight + self.log_std.exp() * torch.randn_like(self.log_std)
        if isinstance(self.layer, nn.Conv2d):
            return conv2d(self.factor * x, weight, padding=1)
        return linear(self.factor * x, weight, self.layer.bias)

    def kl(self) -> Tensor:
        """Of all weights."""  # ()
        log_ratio = self.log_std - math.log(self.prior_std)
        mean = self.layer.weight / self.prior_std
        return (0.5 * ((2 * log_ratio).exp() + mean.square() - 1) - log_ratio).sum()


def gaussian_cnn(width: int, seed: int, num_classes: int) -> nn.Sequential:
    """Norms and biases are as they are."""

    def conv(num_in: int, num_out: int) -> Uncertain:
        return Uncertain(initialised(nn.Conv2d(num_in, num_out, 3, padding=1, bias=False)), 1.0)

    with random_numbers(seed, "gaussian cnn"):
        last = readout(width, num_classes)
        model = nn.Sequential(*body(width, conv=conv), Uncertain(last, float(getattr(last, "factor", 1.0))))
    return in_its_layout(model)


def total_kl(model: nn.Module) -> Tensor:
    """Of all layers."""  # ()
    return torch.stack([layer.kl() for layer in model.modules() if isinstance(layer, Uncertain)]).sum()
