"""σ² and τ² from the training data alone: the Laplace evidence of the last layer and its maximum.

With w the last layer's weights, e the training residuals and λ_j the eigenvalues of Lᵀ gram_posterior L,

    log evidence = −(N/2) log 2πσ² − ‖e‖²/2σ² − wᵀ(BᵀB)⁻¹w/2τ² − ½ Σ_j log(1 + τ²λ_j/σ²).

For a linear model at its posterior mode this is the exact log marginal likelihood.
"""

import math

import torch
from torch import Tensor

from richbll.checks import finite_rows, positive_per_output
from richbll.errors import DataError, ShapeError
from richbll.tuning.validation import Scales

_BISECTIONS = 100


def log_evidence(
    residual_sq: Tensor,
    num_data: int,
    eigenvalues: Tensor,
    weight_sq: Tensor,
    sigma2: Tensor | float,
    tau2: Tensor | float,
) -> Tensor:
    """−(N/2) log 2πσ² − ‖e‖²/2σ² − wᵀ(BᵀB)⁻¹w/2τ² − ½ Σ_j log(1 + τ²λ_j/σ²), one number per output.

    Args:
        residual_sq: ‖e‖² over all N training points, (c,); of a subsample of k rows it is N/k times their sum.
        num_data: N.
        eigenvalues: λ_j, (c, r).
        weight_sq: wᵀ(BᵀB)⁻¹w, (c,).
        sigma2: noise variance, one number or (c,).
        tau2: prior variance, one number or (c,).

    Examples:
        >>> e, w, eigenvalues = torch.tensor([10.0]), torch.tensor([2.0]), torch.tensor([[30.0, 3.0]])
        >>> log_evidence(e, 100, eigenvalues, w, sigma2=0.1, tau2=1.0)
        tensor([-32.3351], dtype=torch.float64)
    """
    residual_sq, eigenvalues, weight_sq = _checked(residual_sq, num_data, eigenvalues, weight_sq)
    noise = positive_per_output("sigma2", sigma2, len(residual_sq)).to(residual_sq.device)
    prior = positive_per_output("tau2", tau2, len(residual_sq)).to(residual_sq.device)
    return (
        -0.5 * num_data * (2 * math.pi * noise).log()
        - residual_sq / (2 * noise)
        - weight_sq / (2 * prior)
        - 0.5 * torch.log1p((prior / noise).unsqueeze(-1) * eigenvalues).sum(dim=-1)
    )


def tune_by_evidence(residual_sq: Tensor, num_data: int, eigenvalues: Tensor, weight_sq: Tensor) -> Scales:
    """The fixed point σ² = ‖e‖²/(N − γ), τ² = wᵀ(BᵀB)⁻¹w/γ with γ = Σ_j τ²λ_j/(σ² + τ²λ_j).

    Put ρ = τ²/σ². The two equations hold exactly where

        N / (1 + ρ ‖e‖² / wᵀ(BᵀB)⁻¹w) = γ(ρ) = Σ_j ρλ_j / (1 + ρλ_j).

    The left side falls from N to 0 and the right side grows from 0: there is one fixed point, it is the maximum of the
    evidence, and bisection finds it whatever the start. The arguments are those of `log_evidence`.

    Examples:
        >>> e, w, eigenvalues = torch.tensor([10.0]), torch.tensor([2.0]), torch.tensor([[30.0, 3.0]])
        >>> scales = tune_by_evidence(e, 100, eigenvalues, w)
        >>> scales.noise_variance, scales.prior_variance
        (tensor([0.1020], dtype=torch.float64), tensor([1.0181], dtype=torch.float64))
    """
    residual_sq, eigenvalues, weight_sq = _checked(residual_sq, num_data, eigenvalues, weight_sq)
    _check_positive(residual_sq, eigenvalues, weight_sq)
    balance = weight_sq / residual_sq  # ρ where N / (1 + ρ ‖e‖²/w²) is N/2

    def left(rho: Tensor) -> Tensor:
        return num_data / (1 + rho / balance)

    def gamma(rho: Tensor) -> Tensor:
        signal = rho.unsqueeze(-1) * eigenvalues
        return (signal / (1 + signal)).sum(dim=-1)

    # left ≥ N/2 ≥ ρ Σ λ ≥ γ at the lower end; left < ½ ≤ γ at the upper one
    low = torch.minimum(balance, 0.5 * num_data / eigenvalues.sum(dim=-1)).log()
    high = torch.maximum(2 * num_data * balance, 1 / eigenvalues.amax(dim=-1)).log()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = gamma(middle.exp()) < left(middle.exp())
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    rho = high.exp()
    sigma2 = (residual_sq + weight_sq / rho) / num_data  # ‖e‖²/(N − γ), without the difference
    return Scales(noise_variance=sigma2, prior_variance=rho * sigma2)


def _checked(
    residual_sq: Tensor, num_data: int, eigenvalues: Tensor, weight_sq: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """‖e‖² (c,), λ (c, r) and wᵀ(BᵀB)⁻¹w (c,) in float64, finite and not negative."""
    if eigenvalues.ndim != 2 or residual_sq.shape != eigenvalues.shape[:1] or weight_sq.shape != eigenvalues.shape[:1]:
        raise ShapeError(
            f"residual_sq (c,), eigenvalues (c, r) and weight_sq (c,) do not agree: they are "
            f"{tuple(residual_sq.shape)}, {tuple(eigenvalues.shape)} and {tuple(weight_sq.shape)}."
        )
    if num_data < 1:
        raise DataError(f"num_data={num_data}: the evidence needs at least one training point.")
    named = {"residual_sq": residual_sq, "eigenvalues": eigenvalues, "weight_sq": weight_sq}
    for name, values in named.items():
        finite_rows(name, "the evidence (a row per output)", values.reshape(len(values), -1))
        if bool((values < 0).any()):
            raise DataError(f"{name} cannot be negative, but its smallest value is {values.min().item():.3g}.")
    first, second, third = (values.detach().to(torch.float64) for values in named.values())
    return first, second, third


def _check_positive(residual_sq: Tensor, eigenvalues: Tensor, weight_sq: Tensor) -> None:
    """The evidence has a maximum only with residuals, weights and data."""
    reasons = {
        "the training residuals are exactly zero, so the evidence drives noise_variance to 0": residual_sq,
        "the last layer's weights are exactly zero, so the evidence drives prior_variance to 0": weight_sq,
        "the last-layer features are zero on the training data, which leaves the prior unbounded": eigenvalues.sum(-1),
    }
    for reason, values in reasons.items():
        if bool((values <= 0).any()):
            raise DataError(
                f"Output {int((values <= 0).nonzero()[0])}: {reason}. Tune on validation data instead, or set "
                "noise_variance and prior_variance yourself."
            )
