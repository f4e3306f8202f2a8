"""The wheel bandit (Riquelme et al. 2018): one rewarding arm per quadrant, and only outside of a disk.

A context x is uniform on the unit disk. Arm 4, the safe one, pays μ₁ = 1.2 everywhere; arms 0 to 3 pay μ₂ = 1.0, except
that where |x| > δ the arm of the quadrant of x pays μ₃ = 50:

    (+, +) → 0,   (+, −) → 1,   (−, +) → 2,   (−, −) → 3.

All rewards have Gaussian noise of standard deviation 0.01. Arms played uniformly cost per step

    4/5 (μ₁ − μ₂) δ² + (μ₃ − (μ₁ + 3 μ₂ + μ₃) / 5) (1 − δ²) = 0.16 δ² + 39.16 (1 − δ²).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll_bench.errors import BanditError

NUM_ARMS, SAFE_ARM = 5, 4
SAFE_REWARD, PLAIN_REWARD, HIGH_REWARD = 1.2, 1.0, 50.0
NOISE_STD = 0.01


@dataclass(frozen=True)
class Wheel:
    """The environment at one difficulty.

    Examples:
        >>> wheel = Wheel(0.5)
        >>> wheel.expected_rewards(torch.tensor([[0.1, 0.1], [0.6, -0.6]])).tolist()
        [[1.0, 1.0, 1.0, 1.0, 1.2...], [1.0, 50.0, 1.0, 1.0, 1.2...]]
    """

    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise BanditError(f"delta={self.delta!r}: the inner disk's radius must lie between 0 and 1.")

    def contexts(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniform on the unit disk: radius √u, any angle."""  # (n, 2)
        radius, turn = torch.rand(count, 2, generator=generator, dtype=torch.float64).unbind(dim=1)
        angle = 2 * math.pi * turn
        return (radius.sqrt() * torch.stack([angle.cos(), angle.sin()])).mT.float()

    def is_outside(self, contexts: Tensor) -> Tensor:
        """Where one arm pays much."""  # (n,)
        return contexts.double().square().sum(dim=1) > self.delta**2

    def expected_rewards(self, contexts: Tensor) -> Tensor:
        """What every arm pays on average."""  # (n, 5)
        if contexts.ndim != 2 or contexts.shape[1] != 2:
            raise BanditError(f"Contexts of the wheel are (n, 2), not {tuple(contexts.shape)}.")
        expected = torch.full((len(contexts), NUM_ARMS), PLAIN_REWARD, dtype=torch.float64)
        expected[:, SAFE_ARM] = SAFE_REWARD
        quadrant = 2 * (contexts[:, 0] < 0).long() + (contexts[:, 1] < 0).long()
        outside = self.is_outside(contexts)
        expected[outside, quadrant[outside]] = HIGH_REWARD
        return expected

    def rewards(self, contexts: Tensor, actions: Tensor, noise: Tensor) -> Tensor:
        """What the arms that were played pay, with standard normal noise (n,)."""  # (n,)
        expected = self.expected_rewards(contexts).gather(1, actions.unsqueeze(1)).squeeze(1)
        return expected + NOISE_STD * noise

    def regrets(self, contexts: Tensor, actions: Tensor) -> Tensor:
        """What the best arm pays more, on average."""  # (n,)
        expected = self.expected_rewards(contexts)
        return expected.amax(dim=1) - expected.gather(1, actions.unsqueeze(1)).squeeze(1)

    def uniform_regrets(self, contexts: Tensor) -> Tensor:
        """What uniform play is expected to cost."""  # (n,)
        expected = self.expected_rewards(contexts)
        return expected.amax(dim=1) - expected.mean(dim=1)

    @property
    def uniform_regret(self) -> float:
        """What a step costs when arms are played uniformly at random."""
        return self._per_step(4 / 5 * (SAFE_REWARD - PLAIN_REWARD), 4 / 5 * HIGH_REWARD - 3 / 5 - SAFE_REWARD / 5)

    @property
    def safe_regret(self) -> float:
        """What a step costs when the safe arm is played always: the level of an agent that has stopped to explore."""
        return self._per_step(0.0, HIGH_REWARD - SAFE_REWARD)

    def _per_step(self, inside: float, outside: float) -> float:
        return inside * self.delta**2 + outside * (1 - self.delta**2)
