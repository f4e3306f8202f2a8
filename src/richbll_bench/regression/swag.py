"""SWA-Gaussian: the weights that training passes through are taken as draws of a Gaussian.

    θ = θ̄ + √½ Σ^½ z₁ + D z₂ / √(2(K − 1)),   z₁, z₂ ~ N(0, I)

θ̄ and the diagonal Σ are mean and variance of the weights after every epoch from half of the training on; the K columns
of D are the last deviations from the running mean.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from richbll_bench.regression.seeds import random_numbers


class Collected:
    """Moments of the weights of S networks, each over epochs of its own."""

    def __init__(self, starts: Sequence[int], ends: Sequence[int], num_weights: int, num_columns: int) -> None:
        self._starts, self._ends = torch.tensor(starts), torch.tensor(ends)
        self.count = torch.zeros(len(starts), dtype=torch.long)
        self.mean = torch.zeros(len(starts), num_weights)  # (S, P)
        self.squares = torch.zeros_like(self.mean)  # (S, P) sum of squared deviations from the mean
        self.columns = torch.zeros(len(starts), num_columns, num_weights)  # (S, K, P)

    def add(self, epoch: int, weights: Tensor) -> None:
        """The weights (S, P) after an epoch, of the networks whose turn it is (Welford's recursion)."""
        now = ((self._starts <= epoch) & (epoch <= self._ends)).nonzero().flatten()
        if len(now) == 0:
            return
        self.count[now] += 1
        before = weights[now] - self.mean[now]
        self.mean[now] += before / self.count[now].unsqueeze(1)
        after = weights[now] - self.mean[now]
        self.squares[now] += before * after
        self.columns[now, (self.count[now] - 1) % self.columns.shape[1]] = after

    def draw(self, number: int, num_samples: int, seed: int) -> Tensor:
        """Weights of one network, (num_samples, P), the same at every call."""
        count = int(self.count[number])
        rank = min(count, self.columns.shape[1])
        with random_numbers(seed, "swag"):
            z1 = torch.randn(num_samples, self.mean.shape[1])
            z2 = torch.randn(num_samples, self.columns.shape[1])
        diagonal = (self.squares[number] / (2 * max(count, 1))).sqrt() * z1
        low_rank = z2 @ self.columns[number] / (2 * max(rank - 1, 1)) ** 0.5
        return self.mean[number] + diagonal + low_rank
