"""NTK-GP on a subset: the Gaussian process of all of the network's gradients, from as many rows as a kernel can hold.

    variance(x) = k(x, x) − k(x, X) (K + k/N σ² I)⁻¹ k(X, x),   k(x, x') = φ^r·φ^r' + φ^m·φ^m'

for a subset X of k of the N rows, whose noise is made smaller by k/N, so that they count as much as all do, and τ² = 1,
the paper's. Every arm is drawn by itself.
"""

from dataclasses import replace

import torch
from torch import Tensor

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import BASE
from richbll_bench.bandits.neural import Neural
from richbll_bench.bandits.noise import Noise
from richbll_bench.bandits.posterior import Rows, gradient_kernel, rows_of

_MOST_ROWS = 256


class SubsetNTKGP(Neural):
    """The schedule and the prior of the noise are those of the last-layer agents; the noise is the same everywhere."""

    def __init__(self, seed: int, num_features: int, num_arms: int) -> None:
        super().__init__(seed, num_features, num_arms, BASE.schedule)
        self._noise = Noise(replace(BASE.noise, kind="inverse_gamma"), num_arms)
        self._kept: tuple[Rows, Tensor] | None = None  # X and the factor of its kernel

    def noticed(self, errors: Tensor, actions: Tensor) -> None:
        """For the noise."""
        self._noise.add(errors, actions)

    def rebuild(self) -> None:
        """A new subset."""
        count = len(self.buffer)
        some = torch.randperm(count, generator=self.generator)[:_MOST_ROWS]
        rows = rows_of(self.learner.network, self.buffer.inputs[some])
        noise = self._noise.variances()[self.buffer.arms[some]] * len(some) / count
        K = self._kernel(rows, rows)
        jitter = 1e-6 * float(K.diagonal().mean())  # the kernel is in float32
        self._kept = rows, torch.linalg.cholesky(K + (noise + jitter).diag())

    def _kernel(self, one: Rows, other: Rows) -> Tensor:
        return gradient_kernel(self.learner.network, one, other).double() + one.phi @ other.phi.mT

    def draw(self, inputs: Tensor) -> Tensor:
        """f plus a normal number for every row."""  # (n · arms,)
        assert self._kept is not None
        kept, chol = self._kept
        rows = rows_of(self.learner.network, inputs)
        prior = _diagonal(self.learner.network.width, rows)
        explained = torch.linalg.solve_triangular(chol, self._kernel(kept, rows), upper=False).square().sum(dim=0)
        std = (prior - explained).clamp_min(0).sqrt()
        return self.outputs(inputs) + std * torch.randn(len(std), generator=self.generator, dtype=torch.float64)


def _diagonal(width: int, rows: Rows) -> Tensor:
    """k(x, x)."""  # (n,)
    first = rows.delta1.square().sum(1) * (width * rows.x.square().sum(1) + 1)
    second = rows.delta2.square().sum(1) * (rows.a1.square().sum(1) + 1)
    return (first + second).double() + rows.phi.square().sum(1)


kind = Kind(
    "NTK-GP on a subset",
    "256 rows, new in every phase; τ² = 1, every arm drawn by itself, inverse-gamma noise with the b₀ of Rich-BLL; "
    "its rate falls as that of NeuralLinear.",
    SubsetNTKGP,
    cost=1.2,
    rule=BASE,
)
