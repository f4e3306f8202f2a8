"""The prior scale alone, by held-out data: of a classifier, and of regression with a noise that is given as σ²(x)."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from richbll.errors import DataError, RichBLLWarning
from richbll.tuning.validation import Scales

_DECADES = 10  # of τ², around the value at which the variance of the logits is 1
_MOST_ELEMENTS = 2**22  # of variances held at a time: 32 MiB


def tune_prior_by_nll(squares: Tensor, eigenvalues: Tensor, sigma2: Tensor, nll: Callable[[Tensor], Tensor]) -> Scales:
    """The τ² of least validation NLL, σ² as it is; `nll` turns t trials of logit variances (t, n, g) into t numbers.

    v = Σ_j (φ^r(x)ᵀw_j)² d_j. The same τ² for all outputs: there is one network. Two grids, the second finer.
    """
    at_once = max(1, _MOST_ELEMENTS // squares[..., 0].numel())  # trials that share their draws

    def variance(tau2: Tensor) -> Tensor:
        d = tau2 / (1 + tau2 * eigenvalues / sigma2.unsqueeze(-1))  # (g, r)
        return torch.einsum("ngr,gr->ng", squares, d)

    def scores_of(grid: Tensor) -> Tensor:
        trials = torch.split(grid, at_once)
        return torch.cat([nll(torch.stack([variance(tau2) for tau2 in some])) for some in trials])

    prior = squares.sum(dim=-1).mean()  # the variance at τ² = 1 before any data
    if not prior > 0:
        raise DataError(
            "All features are zero at the validation points, so nothing there depends on prior_variance: use other "
            "validation data."
        )
    centre = 1 / prior
    grid = centre * torch.logspace(-_DECADES / 2, _DECADES / 2, 41, dtype=prior.dtype, device=prior.device)
    best = int(scores_of(grid).argmin())
    if best in (0, len(grid) - 1):
        end = "lower" if best == 0 else "upper"
        meaning = (
            "what the network says by itself cannot be improved" if best == 0 else "more uncertainty would help still"
        )
        warnings.warn(
            f"The best prior_variance, {grid[best].item():.3g}, is at the {end} edge of the search: {meaning}. Is the "
            "validation data like the data to come, and was it not used in training?",
            RichBLLWarning,
            stacklevel=4,
        )
    else:
        grid = torch.logspace(
            grid[best - 1].log10().item(), grid[best + 1].log10().item(), 21, dtype=prior.dtype, device=prior.device
        )
        best = int(scores_of(grid).argmin())
    return Scales(noise_variance=sigma2, prior_variance=grid[best].expand(len(eigenvalues)).clone())
