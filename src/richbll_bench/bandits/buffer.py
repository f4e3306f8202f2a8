"""Everything that an agent has seen, as inputs of its network, in arrays that grow by doubling."""

import torch
from torch import Tensor

from richbll_bench.bandits.network import with_action


class Buffer:
    """Rows (x, e_a), the arms and the rewards, oldest first."""

    def __init__(self, num_features: int, num_arms: int) -> None:
        self.num_arms = num_arms
        self._inputs = torch.empty(1024, num_features + num_arms)
        self._arms = torch.empty(1024, dtype=torch.long)
        self._rewards = torch.empty(1024)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Keep n more rows."""
        count = self._count + len(contexts)
        while count > len(self._rewards):
            self._inputs, self._arms, self._rewards = (
                torch.cat([kept, torch.empty_like(kept)]) for kept in (self._inputs, self._arms, self._rewards)
            )
        new = slice(self._count, count)
        self._inputs[new] = with_action(contexts, actions, self.num_arms)
        self._arms[new], self._rewards[new] = actions, rewards.to(self._rewards)
        self._count = count

    @property
    def inputs(self) -> Tensor:
        """(N, d + arms)."""
        return self._inputs[: self._count]

    @property
    def arms(self) -> Tensor:
        """(N,)."""
        return self._arms[: self._count]

    @property
    def rewards(self) -> Tensor:
        """(N,)."""
        return self._rewards[: self._count]
