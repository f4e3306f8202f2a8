"""A run: an agent on the wheel, and what it has cost.

Contexts and the noise of the rewards come from the seed alone, so that all agents of a seed see the same contexts.
Regret is the sum of what the best arm would have paid more, in percent of what uniform play is expected to cost there.
The first 16,000 contexts of a run of 80,000 are a run of 16,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll_bench.bandits.agent import Agent
from richbll_bench.bandits.wheel import Wheel
from richbll_bench.regression.seeds import derived_seed

_NUM_ASKED = 2000  # contexts for the simple regret
_LATE = 0.25  # the last part of a run, in which an agent that still plays safe is locked in
_LOCKED = 0.95  # of the late chances missed; uniform play misses 0.8 of them


@dataclass(frozen=True)
class Run:
    """What every step of a run has cost."""

    wheel: Wheel
    regrets: Tensor  # (T,)
    uniform: Tensor  # (T,) what uniform play is expected to cost
    is_outside: Tensor  # (T,)
    simple_regret: float  # of the arms that the agent thinks best at the end, in percent of uniform play

    def percent(self, horizon: int | None = None, where: Tensor | None = None) -> float:
        """Cumulative regret of the first steps in percent of uniform play, all of it or where a mask is true."""
        counted = self.regrets if where is None else self.regrets * where
        horizon = len(counted) if horizon is None else horizon
        return 100 * float(counted[:horizon].sum()) / float(self.uniform[:horizon].sum())

    @property
    def is_locked_in(self) -> bool:
        """Whether it ends at the level of always playing safe: nearly all late chances outside are missed."""
        late = slice(-max(1, int(_LATE * len(self.regrets))), None)
        missed = self.regrets[late][self.is_outside[late]] > 0
        return len(missed) > 0 and float(missed.double().mean()) > _LOCKED

    def metrics(self, horizons: Sequence[int], curve: Sequence[int]) -> dict[str, float]:
        """Numbers for the record."""
        outside, inside = self.is_outside, ~self.is_outside
        found = {"regret": self.percent(), "simple_regret": self.simple_regret}
        found |= {"regret_inside": self.percent(where=inside), "regret_outside": self.percent(where=outside)}
        found |= {"misses": float((self.regrets[outside] > 0).sum()), "locked_in": float(self.is_locked_in)}
        for horizon in horizons:
            found[f"regret_{horizon}"] = self.percent(horizon)
        return found | {f"curve_{step}": self.percent(step) for step in curve}


def play(agent: Agent, wheel: Wheel, num_contexts: int, seed: int) -> Run:
    """One run."""
    contexts = wheel.contexts(num_contexts, _generator(seed, "contexts"))
    noise = torch.randn(num_contexts, generator=_generator(seed, "rewards"), dtype=torch.float64)
    regrets = torch.zeros(num_contexts, dtype=torch.float64)
    done = 0
    while done < num_contexts:
        stop = min(num_contexts, done + agent.phase_length(done))
        some = contexts[done:stop]
        actions = agent.act(some)
        regrets[done:stop] = wheel.regrets(some, actions)
        agent.observe(some, actions, wheel.rewards(some, actions, noise[done:stop]))
        done = stop
    asked = wheel.contexts(_NUM_ASKED, _generator(seed, "asked"))
    simple = float(wheel.regrets(asked, agent.best(asked)).sum()) / float(wheel.uniform_regrets(asked).sum())
    return Run(wheel, regrets, wheel.uniform_regrets(contexts), wheel.is_outside(contexts), 100 * simple)


def _generator(seed: int, place: str) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(seed, "wheel", place))
