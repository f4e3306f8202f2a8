"""Bayesian linear regression of the rewards, arm by arm, with unknown noise: for linear and NeuralLinear agents.

For an arm with features Φ and rewards y, prior w | σ² ~ N(0, σ²/λ I) and σ² ~ InverseGamma(a₀, b₀):

    P = λI + ΦᵀΦ,   w̄ = P⁻¹Φᵀy,   a = a₀ + n/2,   b = b₀ + (yᵀy − w̄ᵀP w̄)/2,
    σ² ~ InverseGamma(a, b),   w ~ N(w̄, σ² P⁻¹).

The diagonal form keeps diag(P) alone for the covariance (Riquelme et al. 2018), and its w̄ is still the full one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoisePrior:
    """a₀, b₀ and λ."""

    shape: float
    scale: float
    precision: float


class Conjugate:
    """The sums of every arm, and draws from them, in float64."""

    def __init__(self, num_arms: int, width: int, prior: NoisePrior, diagonal: bool = False) -> None:
        self.prior, self.diagonal = prior, diagonal
        self._precision = np.tile(prior.precision * np.eye(width), (num_arms, 1, 1))  # P, (arms, r, r)
        self._moment = np.zeros((num_arms, width))  # Φᵀy
        self._square, self._count = np.zeros(num_arms), np.zeros(num_arms)  # yᵀy, n
        self._stale = True

    def add(self, phi: Array, actions: NDArray[np.int64], rewards: Array) -> None:
        """Rows phi (n, r) of the arms that were played."""
        for arm in np.unique(actions):
            rows = actions == arm
            self._precision[arm] += phi[rows].T @ phi[rows]
            self._moment[arm] += phi[rows].T @ rewards[rows]
            self._square[arm] += float(rewards[rows] @ rewards[rows])
            self._count[arm] += int(rows.sum())
        self._stale = True

    def means(self) -> Array:
        """w̄ of every arm."""  # (arms, r)
        self._settle()
        return np.asarray(self._mean, dtype=np.float64)

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """Weights of every arm, a new noise for each."""  # (n, arms, r)
        self._settle()
        shape = self.prior.shape + self._count / 2
        explained = np.einsum("ar,ar->a", self._mean, self._moment)
        scale = self.prior.scale + np.maximum(self._square - explained, 0.0) / 2
        arms, width = self._mean.shape
        noise = scale / generator.gamma(shape, size=(count, arms))  # σ²
        eps = generator.standard_normal((count, arms, width))
        spread = eps * self._root if self.diagonal else np.einsum("asr,nar->nas", self._root, eps)
        return self._mean + np.sqrt(noise)[:, :, None] * spread

    def _settle(self) -> None:
        """w̄ and a root of P⁻¹, when something has been added."""
        if not self._stale:
            return
        self._mean = np.linalg.solve(self._precision, self._moment[:, :, None])[:, :, 0]
        if self.diagonal:
            self._root = np.einsum("arr->ar", self._precision) ** -0.5
        else:
            self._root = np.linalg.inv(np.linalg.cholesky(self._precision)).transpose(0, 2, 1)  # P⁻¹ = R Rᵀ
        self._stale = False
