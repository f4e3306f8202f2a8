"""A noise that differs from place to place: its logarithm is linear in the last layer's features (Harvey 1976).

    log σ²(x, a) = φ^rᵀβ,   β by ridge regression on log e² + 1.27, for residuals e, as log χ²₁ has the mean −1.27

Where no network fits well, such as at the edge of a rare high reward, rewards then count for little, and elsewhere for
as much as they are worth.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from richbll.checks import non_negative
from richbll.errors import OptionError

_LOG_CHI2 = 1.27  # −E log χ²₁
_RIDGE = 1e-3  # relative to the mean square of a feature

Variance = Callable[[Tensor], Tensor]  # φ^r (n, r) → σ² (n,)


class LocalNoise:
    """σ²(x, a) = exp(φ^rᵀβ) + max(2 · `prior` / n, `floor`) after n rewards, β from the residuals of the training.

    The prior is a floor that sinks, as `RollingNoise` has one: it decides how long a sampler explores at least, and is
    in squared units of the reward.

    Examples:
        >>> noise = LocalNoise(prior=10.0)
        >>> noise.add(torch.tensor([0.1, -0.1, 0.2, 0.1]))
        >>> noise.variance
        5.0
    """

    def __init__(self, prior: float = 0.0, floor: float = 1e-6) -> None:
        self.prior, self.floor = non_negative("prior", prior), non_negative("floor", floor)
        if self.floor == 0:
            raise OptionError("floor=0: noise may not vanish; give a small positive number, such as 1e-6.")
        self._count = 0

    def add(self, errors: Tensor) -> None:
        """Errors (n,) of the newest predictions: how many there are is all that counts."""
        self._count += errors.numel()

    @property
    def variance(self) -> float:
        """The part of σ² that is the same everywhere."""
        return max(2 * self.prior / max(self._count, 1), self.floor)

    def fitted(self, phi: Tensor, residuals: Tensor) -> Variance:
        """σ² as a function of features, from those (n, r) of the rows seen and their residuals (n,).

        Examples:
            >>> phi = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(500, 1)
            >>> sigma2 = LocalNoise().fitted(phi, torch.randn(1000) * torch.tensor([0.1, 10.0]).repeat(500))
            >>> bool(sigma2(phi)[0] < 0.05), bool(sigma2(phi)[1] > 20)
            (True, True)
        """
        squares = residuals.detach().double().square().clamp_min(self.floor)
        beta, most, everywhere = log_variance_weights(phi.double(), squares), squares.max(), self.variance
        return lambda phi: (phi.double() @ beta).exp().clamp_max(most) + everywhere


def log_variance_weights(phi: Tensor, squares: Tensor) -> Tensor:
    """β from features (n, r) and squared residuals (n,), both in float64."""  # (r,)
    gram = phi.mT @ phi
    gram.diagonal().add_(_RIDGE * float(gram.diagonal().mean()))
    target = squares.log() + _LOG_CHI2
    return torch.cholesky_solve((phi.mT @ target).unsqueeze(1), torch.linalg.cholesky(gram)).squeeze(1)
