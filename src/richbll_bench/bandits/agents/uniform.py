"""Every arm with the same probability: what regret is measured against."""

import torch
from torch import Tensor

from richbll_bench.bandits.agent import Kind, Seconds
from richbll_bench.regression.seeds import derived_seed


class Uniform:
    """It learns nothing."""

    def __init__(self, seed: int, num_features: int, num_arms: int) -> None:
        self.seconds = Seconds()
        self._num_arms = num_arms
        self._generator = torch.Generator().manual_seed(derived_seed(seed, "uniform"))

    def phase_length(self, num_seen: int) -> int:
        """As many as there are."""
        return 1_000_000

    def act(self, contexts: Tensor) -> Tensor:
        """Any arm."""  # (n,)
        return torch.randint(self._num_arms, (len(contexts),), generator=self._generator)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Nothing to learn."""

    def best(self, contexts: Tensor) -> Tensor:
        """Any arm."""  # (n,)
        return self.act(contexts)


kind = Kind("Uniform", "Regret 100 by definition.", Uniform, cost=0.001)
