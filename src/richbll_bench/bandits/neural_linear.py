"""NeuralLinear (Riquelme et al. 2018): a Bayesian linear regression for each arm on a network's last hidden layer."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from richbll_bench.bandits.conjugate import Array, Conjugate, NoisePrior
from richbll_bench.bandits.neural import Neural
from richbll_bench.bandits.training import Schedule
from richbll_bench.regression.seeds import derived_seed

_CHUNK = 4096


@dataclass(frozen=True)
class NeuralLinearRule:
    """Prior and schedule."""

    prior: NoisePrior
    schedule: Schedule = field(default_factory=Schedule)


class NeuralLinear(Neural):
    """Sums over all rows are made anew after every training, since features have changed."""

    def __init__(self, seed: int, num_features: int, num_arms: int, rule: NeuralLinearRule) -> None:
        super().__init__(seed, num_features, num_arms, rule.schedule)
        self.rule = rule
        self._random = np.random.default_rng(derived_seed(seed, "neural linear"))
        self._posterior = self._empty()

    def _empty(self) -> Conjugate:
        return Conjugate(self.num_arms, self.learner.network.width, self.rule.prior)

    def rebuild(self) -> None:
        """The regressions of all arms on the features as they are now."""
        self._posterior = self._empty()
        buffer = self.buffer
        for start in range(0, len(buffer), _CHUNK):
            rows = slice(start, start + _CHUNK)
            phi = self._features(buffer.inputs[rows])
            self._posterior.add(phi, buffer.arms[rows].numpy(), buffer.rewards[rows].double().numpy())

    def _features(self, inputs: Tensor) -> Array:
        return self.learner.network.hidden(inputs)[1].double().numpy()

    def draw(self, inputs: Tensor) -> Tensor:
        """σ² and weights of every arm, new for each context."""  # (n · arms,)
        phi = self._features(inputs).reshape(-1, self.num_arms, self.learner.network.width)
        weights = self._posterior.draw(len(phi), self._random)
        return torch.from_numpy(np.einsum("nar,nar->na", phi, weights).reshape(-1))

    def outputs(self, inputs: Tensor) -> Tensor:
        """By the mean weights of the arm."""  # (n,)
        codes = inputs[:, -self.num_arms :].argmax(dim=1).numpy()
        return torch.from_numpy(np.einsum("nr,nr->n", self._features(inputs), self._posterior.means()[codes]))
