"""SNGP's two parts: convolutions whose gain is bounded, and a last layer of random features with a posterior.

    W ← W min(1, 6 / σ(W)),   φ(x) = cos(Ω a(x) + b),   f = φ(x) β,   Λ = I + Σ_i φ(x_i) φ(x_i)ᵀ
    v(x) = φ(x)ᵀ Λ⁻¹ φ(x),   p = softmax(f / √(1 + 25 v))

Features are not divided by √(D/2), as in the authors' code: ridge 1 and factor 25 belong to ‖φ‖² ≈ D/2. σ(W) is the
largest singular value of the kernel as a matrix, by power iteration, a step of it in each training step.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, normalize

from richbll_bench.images.cnn import body, in_its_layout, initialised
from richbll_bench.regression.seeds import random_numbers

BOUND, NUM_FEATURES, RIDGE, MEAN_FIELD = 6.0, 1024, 1.0, 25.0
_LENGTH_SCALE = math.sqrt(2.0)


class BoundedConv(nn.Module):
    """A 3 × 3 convolution with σ(W) ≤ 6."""

    u: Tensor  # (out,) the left singular vector, approached step by step
    v: Tensor  # (9 in,)

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = initialised(nn.Conv2d(num_in, num_out, 3, bias=False)).weight
        self.register_buffer("u", normalize(torch.randn(num_out), dim=0))
        self.register_buffer("v", normalize(torch.randn(9 * num_in), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with the bounded weight."""
        matrix = self.weight.flatten(1)
        with torch.autocast(x.device.type, enabled=False):
            if self.training:
                with torch.no_grad():
                    v = normalize(matrix.mT @ self.u, dim=0)
                    self.u, self.v = normalize(matrix @ v, dim=0), v
            gain = self.u @ matrix @ self.v
        return conv2d(x, self.weight * (BOUND / gain.clamp_min(BOUND)), padding=1)


class RandomFeatures(nn.Module):
    """cos(Ω a + b), fixed: the features of a radial kernel, in units of √(D/2)."""

    omega: Tensor  # (D, d)
    phase: Tensor  # (D,)

    def __init__(self, num_inputs: int, num_features: int) -> None:
        super().__init__()
        self.register_buffer("omega", torch.randn(num_features, num_inputs) / _LENGTH_SCALE)
        self.register_buffer("phase", 2 * math.pi * torch.rand(num_features))

    def forward(self, a: Tensor) -> Tensor:
        """(n, d) → (n, D)."""
        with torch.autocast(a.device.type, enabled=False):
            return torch.cos(a.float() @ self.omega.mT + self.phase)


def sngp(width: int, seed: int, num_classes: int, num_features: int = NUM_FEATURES) -> nn.Sequential:
    """A new network; its last module is the linear layer over random features."""
    with random_numbers(seed, "sngp"):
        model = nn.Sequential(
            *body(width, conv=BoundedConv),
            RandomFeatures(4 * width, num_features),
            nn.Linear(num_features, num_classes, bias=False),
        )
    return in_its_layout(model)


def precision_root(features: Tensor) -> Tensor:
    """The lower Cholesky factor of Λ."""  # (D, D)
    phi = features.double()
    return torch.linalg.cholesky(RIDGE * torch.eye(phi.shape[1], dtype=phi.dtype) + phi.mT @ phi)


def variance(lower: Tensor, features: Tensor) -> Tensor:
    """v(x) = λ ‖Λ^(-1/2) φ(x)‖²."""  # (n,)
    return RIDGE * torch.linalg.solve_triangular(lower, features.double().mT, upper=False).square().sum(dim=0)


def mean_field(logits: Tensor, found: Tensor) -> Tensor:
    """f / √(1 + 25 v)."""  # (n, C)
    return logits.double() / torch.sqrt(1 + MEAN_FIELD * found).unsqueeze(1)
