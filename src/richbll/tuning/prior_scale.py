"""One scale by held-out data, where the noise cannot be had from errors: of a classifier, and with a given σ²(x).

The prior's, as a rule. A classifier whose curvature is Gaussian has a σ² too, but it is no noise that could be
measured: it says how much an example teaches. With many examples the prior no longer matters, and σ² alone decides how
unsure the logits are. So both are multiplied by one factor: what the posterior has learned where stays as it is, and
variances are all larger or smaller by that factor.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from richbll.errors import DataError, RichBLLWarning
from richbll.tuning.validation import Scales

_DECADES = 10  # searched, around the value at which the variance of the logits is 1
_MOST_ELEMENTS = 2**22  # of variances held at a time: 32 MiB
NLL = Callable[[Tensor], Tensor]  # turns t trials of logit variances (t, n, g) into t numbers


def tune_prior_by_nll(squares: Tensor, eigenvalues: Tensor, sigma2: Tensor, nll: NLL) -> Scales:
    """The τ² of least validation NLL, σ² as it is, the same for all outputs: there is one network.

    v = Σ_j (φ^r(x)ᵀw_j)² d_j, d = τ²/(1 + τ²λ/σ²).
    """

    def variance(tau2: Tensor) -> Tensor:
        d = tau2 / (1 + tau2 * eigenvalues / sigma2.unsqueeze(-1))  # (g, r)
        return torch.einsum("ngr,gr->ng", squares, d)

    tau2 = _best("prior_variance", variance, squares.sum(dim=-1), nll)  # v at τ² = 1 before any data
    return Scales(noise_variance=sigma2, prior_variance=tau2.expand(len(eigenvalues)).clone())


def tune_both_by_nll(squares: Tensor, eigenvalues: Tensor, scales: Scales, nll: NLL) -> Scales:
    """σ² and τ² times the factor of least validation NLL, the same for all outputs."""
    tau2, sigma2 = scales.prior_variance.unsqueeze(-1), scales.noise_variance.unsqueeze(-1)
    v = torch.einsum("ngr,gr->ng", squares, tau2 / (1 + tau2 * eigenvalues / sigma2))
    factor = _best("scale of noise_variance and prior_variance", lambda factor: factor * v, v, nll)
    return Scales(noise_variance=factor * scales.noise_variance, prior_variance=factor * scales.prior_variance)


def _best(name: str, variance: Callable[[Tensor], Tensor], at_one: Tensor, nll: NLL) -> Tensor:
    """The scale of least NLL, by two grids, the second finer; `at_one` (n, g) says where to look."""
    at_once = max(1, _MOST_ELEMENTS // at_one.numel())  # trials that share their draws

    def scores_of(grid: Tensor) -> Tensor:
        trials = torch.split(grid, at_once)
        return torch.cat([nll(torch.stack([variance(scale) for scale in some])) for some in trials])

    mean = at_one.mean()
    if not mean > 0:
        raise DataError(
            f"All features are zero at the validation points, so nothing there depends on the {name}: use other "
            "validation data."
        )
    grid = torch.logspace(-_DECADES / 2, _DECADES / 2, 41, dtype=mean.dtype, device=mean.device) / mean
    best = int(scores_of(grid).argmin())
    if best in (0, len(grid) - 1):
        end = "lower" if best == 0 else "upper"
        meaning = (
            "what the network says by itself cannot be improved" if best == 0 else "more uncertainty would help still"
        )
        warnings.warn(
            f"The best {name}, {grid[best].item():.3g}, is at the {end} edge of the search: {meaning}. Is the "
            "validation data like the data to come, and was it not used in training?",
            RichBLLWarning,
            stacklevel=5,
        )
        return grid[best]
    fine = torch.logspace(
        grid[best - 1].log10().item(), grid[best + 1].log10().item(), 21, dtype=mean.dtype, device=mean.device
    )
    return fine[scores_of(fine).argmin()]
