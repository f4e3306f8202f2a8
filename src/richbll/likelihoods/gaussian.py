"""Gaussian noise: y = f(x) + ε with ε ~ N(0, σ²), one σ² per output."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from richbll.checks import finite_rows
from richbll.core.moments import Moments
from richbll.core.posterior import SpectralPosterior
from richbll.errors import DataError, OptionError
from richbll.network.batches import Batch
from richbll.network.reading import Reading
from richbll.precision import in_float64

NO_TARGETS = (
    "The data has no targets, so the noise cannot be estimated from it: give noise_variance=… (for example the mean "
    "squared error on validation data)."
)


@dataclass(frozen=True)
class Gaussian:
    """Reads data for regression: every output's gradient, and weight 1/σ²(x) where the noise depends on the input."""

    noise: Callable[..., Any] | None = None  # x → σ² (n, c)
    one_column: bool = False

    def read(self, batch: Batch, f: Tensor) -> Reading:
        """Residuals where there are targets."""
        y = batch.targets_like(f)
        if y is not None:
            finite_rows("targets", batch.where, y)
        weights = None if self.noise is None else in_float64(noise_at(self.noise, batch, f).detach()).reciprocal()
        return Reading(weights=weights, residuals=None if y is None else in_float64(y) - in_float64(f))


def noise_at(noise: Callable[..., Any], batch: Batch, f: Tensor) -> Tensor:
    """σ²(x), one for every example and output, checked."""  # (n, c)
    try:
        given = torch.as_tensor(noise(*batch.args, **batch.kwargs))
    except TypeError as error:
        raise OptionError(
            f"noise_variance(x) does not take what the model takes, or returns no tensor: {error}."
        ) from error
    if given.ndim == 1 and f.shape[1] == 1:
        given = given.unsqueeze(1)
    if given.shape not in (f.shape, (len(f), 1)):
        raise OptionError(
            f"noise_variance(x) returned shape {tuple(given.shape)} for {len(f)} examples and {f.shape[1]} output(s): "
            f"it must be ({len(f)}, {f.shape[1]})."
        )
    finite_rows("noise variance", batch.where, given)
    if bool((given <= 0).any()):
        raise OptionError(f"noise_variance(x) is not positive in {batch.where}: the smallest is {given.min():.3g}.")
    return given.to(f.device).expand(f.shape)


def log_density(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(y; mean, variance), summed over outputs."""  # (n,)
    return -0.5 * ((y - mean).square() / variance + torch.log(2 * math.pi * variance)).sum(dim=-1)


def central_interval(mean: Tensor, variance: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The central interval that holds a fraction `level` of N(mean, variance)."""
    if not 0 < level < 1:
        raise OptionError(f"level={level!r}: must lie strictly between 0 and 1, e.g. 0.9.")
    half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)).item() * variance.sqrt()
    return mean - half, mean + half


def noise_from_residuals(moments: Moments, posterior: SpectralPosterior, tau2: Tensor) -> Tensor:
    """The fixed point of σ² = ‖e‖² / (N − γ(σ²)), per output, from the training residuals e.

    γ falls with σ², so the right side falls too and the root is unique, between ‖e‖²/N and the right side there.
    """
    if moments.residual_sq is None:
        raise DataError(NO_TARGETS)
    total = moments.row_weight * moments.residual_sq.to(tau2.device)  # (c,)
    if bool((total <= 0).any()):
        raise DataError(
            "The model reproduces its training targets exactly, so the residuals say nothing about the noise: "
            "give noise_variance=… (for example the mean squared error on validation data)."
        )

    # N − γ without cancellation: of at most p directions that the data has, each leaves σ²/(σ² + τ²λ_j) undetermined
    p = min(moments.num_rows, posterior.eigenvalues.shape[-1])
    signal = tau2.unsqueeze(-1) * posterior.eigenvalues[:, :p]

    def right_side(sigma2: Tensor) -> Tensor:
        undetermined = (sigma2.unsqueeze(-1) / (sigma2.unsqueeze(-1) + signal)).sum(dim=-1)
        return total / (moments.num_data - p + undetermined)

    low = total / moments.num_data
    high = right_side(low)
    for _ in range(100):  # bisection on the logarithm
        middle = torch.exp((low.log() + high.log()) / 2)
        below = middle < right_side(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high
