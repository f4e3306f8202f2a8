"""Thompson sampling with Rich-BLL or BLL: rewards are drawn from f + φ^rᵀV ε, the posterior of the last layer.

Where the noise differs from place to place ("local"), its logarithm is a linear function of the features, as in
`richbll.bandits.LocalNoise`: the ring of the wheel, which no network fits sharply, then counts as noisy, and the inside
does not.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from richbll.bandits.local_noise import log_variance_weights
from richbll_bench.bandits.neural import Neural
from richbll_bench.bandits.noise import Noise, NoiseRule
from richbll_bench.bandits.posterior import gram, posterior_root, scaled, transform
from richbll_bench.bandits.training import Schedule
from richbll_bench.errors import BanditError

DRAWS = ("function", "arm")  # one function for all arms of a context, or every arm by itself
_SMALLEST = 1e-4  # squared residuals below are as good as this
_LARGEST = 1e4  # σ²(x) above is as bad as this
_NOISE_ROWS = 4096  # to which β is fitted
_LEAST_PRIOR, _LARGEST_PRIOR = 1e-2, 1e6  # what evidence may choose


@dataclass(frozen=True)
class LastLayerRule:
    """All that the draws depend on."""

    enrich: bool = True
    prior_variance: float | None = 100.0  # τ²; None: by evidence, anew in every phase
    ridge: float = 1e-2
    projection_rows: int = 512  # from which A is estimated
    posterior_rows: int | None = None  # from which the posterior is; None: all
    noise: NoiseRule = field(default_factory=NoiseRule)
    draws: str = "function"
    observation_noise: bool = False  # draw rewards and not their means
    standardise: bool = False  # prior in units of the rewards' standard deviation
    feature_scale: float = 1.0
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if self.draws not in DRAWS:
            raise BanditError(f"Draws are by {' or by '.join(DRAWS)}; not by {self.draws!r}.")


class LastLayer(Neural):
    """Rich-BLL, its subsampled form, and BLL, by the rule."""

    def __init__(self, seed: int, num_features: int, num_arms: int, rule: LastLayerRule) -> None:
        super().__init__(seed, num_features, num_arms, rule.schedule)
        self.rule = rule
        self._noise = Noise(rule.noise, num_arms)
        self._prior_variance = rule.prior_variance or 1.0
        self._root = torch.zeros(0, 0)  # V
        self._beta = torch.zeros(0)

    def noticed(self, errors: Tensor, actions: Tensor) -> None:
        """For the noise."""
        self._noise.add(errors, actions)

    def rebuild(self) -> None:
        """L, G and V of the network as it is now."""
        rule, network, inputs = self.rule, self.learner.network, self.buffer.inputs
        L = torch.eye(network.width + 1, dtype=torch.float64)
        if rule.enrich:
            L = transform(network, inputs[self._some(rule.projection_rows)], rule.ridge, rule.feature_scale)
        rows = self._some(len(self.buffer) if rule.posterior_rows is None else max(rule.posterior_rows, len(L)))
        weight, arms = len(self.buffer) / len(rows), self.buffer.arms[rows]  # N/k
        if rule.noise.kind == "local":
            self._beta = self._log_variance(rows[:_NOISE_ROWS])
        G = gram(network, inputs[rows], lambda phi, some: weight / self.variance(phi, arms[some]), rule.feature_scale)
        tau2 = self._prior_variance * (float(self.buffer.rewards.var()) if rule.standardise else 1.0)
        self._root, gamma = posterior_root(L, G, tau2)
        if rule.prior_variance is None:
            self._prior_variance = self._by_evidence(L, gamma)

    def variance(self, phi: Tensor, arms: Tensor) -> Tensor:
        """σ² at features (n, r) and arms (n,); a local noise is on top of what prior and floor leave."""  # (n,)
        by_arm = self._noise.variances()[arms]
        if self.rule.noise.kind != "local":
            return by_arm
        return (phi @ self._beta).clamp_max(math.log(_LARGEST)).exp() + by_arm

    def _log_variance(self, rows: Tensor) -> Tensor:
        """β from the residuals at some rows."""  # (r,)
        network = self.learner.network
        phi = network.features(self.buffer.inputs[rows]).double()
        residuals = self.buffer.rewards[rows].double() - phi @ network.last_weights.double()
        return log_variance_weights(phi, residuals.square().clamp_min(_SMALLEST))

    def _by_evidence(self, L: Tensor, gamma: float) -> float:
        """τ² = wᵀ(BᵀB)⁻¹w / γ, one step of the fixed point."""
        w = self.learner.network.last_weights.double()
        w = torch.cat([w[:-1] / self.rule.feature_scale, w[-1:]])
        size = torch.linalg.solve_triangular(L, w.unsqueeze(1), upper=False).square().sum()
        return min(max(float(size) / max(gamma, 1e-3), _LEAST_PRIOR), _LARGEST_PRIOR)

    def _some(self, count: int) -> Tensor:
        """A subsample without repetition, new in every phase."""  # (k,)
        return torch.randperm(len(self.buffer), generator=self.generator)[:count]

    def draw(self, inputs: Tensor) -> Tensor:
        """f + φ^rᵀV ε."""  # (n · arms,)
        phi = self.learner.network.features(inputs).double()
        mean = phi @ self.learner.network.last_weights.double()
        Z = (scaled(phi, self.rule.feature_scale) @ self._root).view(-1, self.num_arms, self._root.shape[1])
        if self.rule.draws == "function":
            offsets = torch.einsum("nar,nr->na", Z, self._normal(len(Z), Z.shape[2]))
        else:
            offsets = torch.linalg.vector_norm(Z, dim=2) * self._normal(len(Z), self.num_arms)
        if self.rule.observation_noise:
            arms = torch.arange(self.num_arms).repeat(len(Z))
            noise = self.variance(phi, arms).view(-1, self.num_arms)
            offsets = offsets + noise.sqrt() * self._normal(len(Z), self.num_arms)
        return mean + offsets.flatten()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)
