"""The wheel as a Gymnasium environment, for agents that are written against that interface (`richbll[gym]`)."""

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from richbll_bench.bandits.wheel import NUM_ARMS, Wheel

Observation = NDArray[np.float32]


class WheelEnv(gymnasium.Env[Observation, np.int64]):
    """One context a step; `info["regret"]` is what the best arm would have paid more. Truncated after the horizon.

    Examples:
        >>> env = WheelEnv(delta=0.5, horizon=2)
        >>> context, _ = env.reset(seed=0)
        >>> context, reward, terminated, truncated, info = env.step(4)
        >>> terminated, truncated
        (False, False)
    """

    def __init__(self, delta: float = 0.95, horizon: int = 80_000) -> None:
        self.wheel, self.horizon = Wheel(delta), horizon
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(NUM_ARMS)
        self._generator = torch.Generator()
        self._context, self._num_steps = torch.zeros(1, 2), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """The first context; the same seed gives the same ones."""
        super().reset(seed=seed, options=options)
        self._generator.manual_seed(int(self.np_random.integers(2**63)))
        self._num_steps = 0
        return self._next(), {}

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """What the arm pays in this context, and the next one."""
        context, arms = self._context, torch.tensor([int(action)])
        noise = torch.randn(1, generator=self._generator, dtype=torch.float64)
        reward = float(self.wheel.rewards(context, arms, noise))
        info = {"regret": float(self.wheel.regrets(context, arms))}
        self._num_steps += 1
        return self._next(), reward, False, self._num_steps >= self.horizon, info

    def _next(self) -> Observation:
        self._context = self.wheel.contexts(1, self._generator)
        return np.asarray(self._context[0].numpy(), dtype=np.float32)
