"""The likelihood of validation data as a function of one number, ρ = τ²/σ², and its minimum.

The predictive variance of a point is σ² (1 + u(ρ)), u = Σ_j s_j ρ / (1 + ρ λ_j), s_j = (φ^r(x)ᵀw_j)². With e = y − f

    mean NLL = ½ (log 2πσ² + mean log(1 + u) + mean(e² / (1 + u)) / σ²),

so for a given ρ the best σ² is mean(e² / (1 + u)), and the search over (σ², τ²) is a search over ρ. So it is when σ² or
τ² is given. ρ is measured in units of 1 / max Σ_j s_j and σ² in units of the mean squared error.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_LOWEST, _DECADES = -4.0, 16.0  # log₁₀ ρ: at the lower edge no variance exceeds 1e-4 of the noise
_NOISE_DECADES = 12.0  # with τ² given: σ² from 1e4 down to 1e-8 of the mean squared error
_PER_DECADE = 8
_ROUNDS, _FINER = 3, 8  # three times an eight times finer grid: ρ to 0.06 %
_TIE = 1e-6  # nats per point: of ratios this close on the first grid the smallest is taken, and so the smallest τ²
_MOST_ELEMENTS = 2**22  # held at a time: 32 MiB


@dataclass(frozen=True)
class BestRatio:
    """The best ρ of one output with its σ², and whether the edges of the search are as good."""

    rho: float
    sigma2: float
    at_lower_edge: bool
    at_upper_edge: bool
    noise_vanishes: bool  # towards the upper edge it is σ² that falls, not τ² that grows


def best_ratio(
    squares: Tensor, eigenvalues: Tensor, errors_sq: Tensor, sigma2: float | None, tau2: float | None
) -> BestRatio:
    """The minimum for one output: s (n, r), λ (r,), e² (n,), and σ² or τ² if given."""
    mse = errors_sq.mean(dtype=torch.float64).item()
    unit = 1 / squares.sum(dim=-1, dtype=torch.float64).max().item()  # of ρ

    def nll_and_noise(x: Tensor) -> tuple[Tensor, Tensor]:
        """NLL without its constant, and σ² in units of the mean squared error, at x = log₁₀ ρ (g,)."""
        rho = unit * 10**x
        spread, fit = _means(squares, eigenvalues, errors_sq, rho)
        fit = fit / mse
        noise = fit
        if sigma2 is not None:
            noise = torch.full_like(rho, sigma2 / mse)
        elif tau2 is not None:
            noise = tau2 / mse / rho
        return 0.5 * (noise.log() + spread + fit / noise), noise

    lowest, decades = _LOWEST, _DECADES
    if sigma2 is not None:
        decades += max(0.0, math.log10(mse / sigma2))  # less noise leaves more to explain
    elif tau2 is not None:
        lowest, decades = math.log10(tau2 / unit / mse) - 4, _NOISE_DECADES
    steps = torch.arange(math.ceil(_PER_DECADE * decades) + 1, dtype=torch.float64, device=squares.device)
    grid = lowest + steps / _PER_DECADE
    x, lower, upper = _minimum(lambda x: nll_and_noise(x)[0], grid)
    before, last = nll_and_noise(grid[[-1 - _PER_DECADE, -1]])[1].tolist()  # σ² over the last decade
    return BestRatio(
        rho=unit * 10**x,
        sigma2=mse * nll_and_noise(grid.new_tensor([x]))[1].item(),
        at_lower_edge=lower,
        at_upper_edge=upper,
        noise_vanishes=last < before / 3,
    )


def _means(squares: Tensor, eigenvalues: Tensor, errors_sq: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """Mean log(1 + u) and mean e² / (1 + u) over the points for every ρ (g,), in parts of bounded size."""
    shrink = rho / (1 + rho * eigenvalues.to(torch.float64).unsqueeze(-1))  # (r, g)
    rows = max(1, _MOST_ELEMENTS // max(shrink.shape))
    spread, fit = torch.zeros_like(rho), torch.zeros_like(rho)
    for s, e in zip(torch.split(squares, rows), torch.split(errors_sq, rows), strict=True):
        u = s.to(torch.float64) @ shrink  # (rows, g)
        spread += u.log1p().sum(dim=0)
        fit += (e.to(torch.float64).unsqueeze(-1) / (1 + u)).sum(dim=0)
    return spread / len(squares), fit / len(squares)


def _minimum(objective: Callable[[Tensor], Tensor], grid: Tensor) -> tuple[float, bool, bool]:
    """The minimiser near the best point of an ascending grid, and whether the lower and the upper edge are as good."""
    values = objective(grid)
    good = values <= values.min() + _TIE
    at = int(good.nonzero()[0])
    lower, upper = at == 0, bool(good[-1])
    for _ in range(_ROUNDS):
        low, high = grid[max(at - 1, 0)].item(), grid[min(at + 1, len(grid) - 1)].item()
        grid = torch.linspace(low, high, 2 * _FINER + 1, dtype=grid.dtype, device=grid.device)
        values = objective(grid)
        at = int((values == values.min()).nonzero()[0])
    return grid[at].item(), lower, upper
