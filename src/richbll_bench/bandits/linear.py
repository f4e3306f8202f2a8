"""Agents without a network: a Bayesian linear regression of the rewards for every arm, on (x, 1)."""

import numpy as np
import torch
from torch import Tensor

from richbll_bench.bandits.agent import Seconds, each_arm_first
from richbll_bench.bandits.conjugate import Array, Conjugate, NoisePrior
from richbll_bench.regression.seeds import derived_seed

PRIOR = NoisePrior(shape=6.0, scale=6.0, precision=0.25)
_FIRST_ROUNDS = 2
_EVERY = 100  # at least once in so many contexts; sooner while there are few


class Linear:
    """Thompson sampling: σ² from its posterior, then weights, for every arm and context."""

    def __init__(self, seed: int, num_features: int, num_arms: int, *, diagonal: bool = False) -> None:
        self.seconds = Seconds()
        self._num_arms, self._num_seen = num_arms, 0
        self._posterior = Conjugate(num_arms, num_features + 1, PRIOR, diagonal)
        self._generator = np.random.default_rng(derived_seed(seed, "linear"))

    def phase_length(self, num_seen: int) -> int:
        """One by one at first, later whenever the data has grown by a hundredth."""
        return min(_EVERY, max(1, num_seen // 100))

    def act(self, contexts: Tensor) -> Tensor:
        """The arm whose drawn weights promise most."""  # (n,)
        first = each_arm_first(self._num_seen, len(contexts), self._num_arms, _FIRST_ROUNDS)
        if first is not None:
            return first
        with self.seconds.of("act"):
            weights = self._posterior.draw(len(contexts), self._generator)  # (n, arms, r)
            return torch.from_numpy(np.einsum("nar,nr->na", weights, _features(contexts)).argmax(axis=1))

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Add to the sums of the arms."""
        with self.seconds.of("posterior"):
            self._posterior.add(_features(contexts), actions.numpy(), rewards.double().numpy())
        self._num_seen += len(contexts)

    def best(self, contexts: Tensor) -> Tensor:
        """By the mean weights."""  # (n,)
        return torch.from_numpy((_features(contexts) @ self._posterior.means().T).argmax(axis=1))


def _features(contexts: Tensor) -> Array:
    """(x, 1)."""  # (n, r)
    x = contexts.double().numpy()
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)
