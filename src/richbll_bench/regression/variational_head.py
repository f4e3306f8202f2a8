"""The variational last layer of the `vbll` package (Harrison et al. 2024), written so that many train together.

With q(w) = N(w̄, S), S = L Lᵀ, noise variance σ², features φ = φ(x) of width n and prior N(0, I / n):

    −ELBO = mean[½ log 2πσ² + ((y − w̄ᵀφ)² + φᵀSφ) / 2σ²] + λ (KL(q ‖ p) − (ν log σ⁻² − s / 2σ²)),   λ = 1 / N
    p(y | x) = N(w̄ᵀφ, φᵀSφ + σ²)

Names of parameters, their first values and the constants (ν = 3/2, s = 0.01, KL without n/2) are the package's, but for
log σ, which is there drawn from N(0, 4.6²), whatever the targets' units: on Boston some seeds were still far off after
400 epochs.
"""

import math

import torch
from torch import Tensor, nn
from vbll import Regression

DOF, WISHART_SCALE = 1.5, 1e-2


class VariationalHead(nn.Module):
    """w̄, L and log σ, one output."""

    def __init__(self, width: int, noise_std: float) -> None:
        super().__init__()
        start = Regression(width, 1, regularization_weight=1.0)
        self.W_mean = nn.Parameter(start.W_mean.detach())  # (1, n)
        self.W_logdiag = nn.Parameter(start.W_logdiag.detach())  # (1, n)
        self.W_offdiag = nn.Parameter(start.W_offdiag.detach())  # (1, n, n), what is above the diagonal is not used
        self.noise_logdiag = nn.Parameter(torch.tensor([math.log(noise_std)]))  # (1,) log σ

    @property
    def chol(self) -> Tensor:
        """L, (n, n)."""
        return self.W_offdiag[0].tril(-1) + torch.diag(self.W_logdiag[0].exp())

    def moments(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """w̄ᵀφ (n, 1), φᵀSφ (n, 1) and σ² (1,)."""
        variance = (phi @ self.chol).square().sum(dim=1, keepdim=True)
        return phi @ self.W_mean.mT, variance, (2 * self.noise_logdiag).exp()

    def kl(self) -> Tensor:
        """KL(q ‖ p) without its constant: ½ (n |w̄|² + n tr S − n log n − log det S)."""  # ()
        width = self.W_mean.shape[1]
        chol_squares = self.W_offdiag.tril(-1).square().sum() + (2 * self.W_logdiag).exp().sum()  # tr S
        squares = self.W_mean.square().sum() + chol_squares
        return 0.5 * (width * squares - width * math.log(width) - 2 * self.W_logdiag.sum())

    def noise_prior(self) -> Tensor:
        """Log-density of σ⁻² as the package has it: ν log σ⁻² − s / 2σ²."""  # ()
        return (-2 * DOF * self.noise_logdiag - 0.5 * WISHART_SCALE * (-2 * self.noise_logdiag).exp()).sum()


class VariationalNetwork(nn.Module):
    """The backbone's hidden layers under a variational last layer.

    The prior's 1 / n is what the factor n^(-1/2) of the backbone's last layer is, so here the features have none.
    """

    def __init__(self, hidden: nn.Module, head: VariationalHead) -> None:
        super().__init__()
        self.hidden, self.head = hidden, head

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (n, 1), epistemic variance (n, 1) and noise variance (1,); or, with targets, the terms of the ELBO."""
        mean, variance, noise = self.head.moments(self.hidden(x))
        if y is None:
            return mean, variance, noise
        expected = 0.5 * (math.log(2 * math.pi) + noise.log() + ((y - mean).square() + variance) / noise)
        return expected.mean(), self.head.kl(), self.head.noise_prior()
