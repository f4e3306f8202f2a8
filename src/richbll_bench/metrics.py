"""How good is a Gaussian prediction N(μ, v) of a target y? Each measure is a mean over the examples."""

import math

import torch
from torch import Tensor
from torch.special import ndtr, ndtri


def gaussian_nll(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood: mean of ½ log(2πv) + (y − μ)² / 2v, in nats.

    Examples:
        >>> gaussian_nll(torch.zeros(1), torch.ones(1), torch.zeros(1))
        tensor(0.9189)
    """
    return (0.5 * torch.log(2 * math.pi * variance) + (y - mean).square() / (2 * variance)).mean()  # ()


def gaussian_crps(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Continuous ranked probability score in the units of y: mean of √v [z(2Φ(z) − 1) + 2φ(z) − 1/√π], z = (y − μ)/√v.

    Examples:
        >>> gaussian_crps(torch.zeros(1), torch.ones(1), torch.zeros(1))
        tensor(0.2337)
    """
    std = variance.sqrt()  # (n,)
    z = (y - mean) / std  # (n,)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return (std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))).mean()  # ()


def coverage(mean: Tensor, variance: Tensor, y: Tensor, level: float = 0.9) -> Tensor:
    """Share of targets inside the central interval: mean of 1{|y − μ| ≤ √v Φ⁻¹((1 + level)/2)}.

    Examples:
        >>> coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.6, 1.7]))
        tensor(0.5000)
    """
    half_width = variance.sqrt() * ndtri(torch.tensor((1 + level) / 2, dtype=variance.dtype))  # (n,)
    return ((y - mean).abs() <= half_width).to(variance.dtype).mean()  # ()
