"""How the network follows the data: warm steps in every phase, and a new start whenever the data has grown by half.

A network that is trained on and on from its first rewards can stay where these have put it, with dead units and wrong
by more than the gap of 0.2 between arms inside of the wheel; a new one on the same rows starts free of that. There are
some twenty starts in 80,000 contexts. `wheel-why` has the variant without.
"""

import math
from dataclasses import dataclass

import torch

from richbll_bench.bandits.buffer import Buffer
from richbll_bench.bandits.network import Network
from richbll_bench.regression.seeds import derived_seed


@dataclass(frozen=True)
class Schedule:
    """Phases and steps."""

    phase: int = 20  # contexts between two trainings
    growth: float = 0.02  # or this part of the contexts seen, when that is more
    steps: int = 20  # in every phase
    learning_rate: float = 1e-3
    batch_size: int = 256
    restart: float | None = 1.5  # a new network when there are so many times the rows; None: never
    restart_steps: int = 1500  # at most; two for each row while there are few
    peak: float = 1e-2  # the rate from which a new network's falls to nothing, by a cosine
    first_pulls: int = 3  # of each arm

    def phase_length(self, num_seen: int, num_arms: int) -> int:
        """The first phase is the first pulls."""
        if num_seen == 0:
            return self.first_pulls * num_arms
        return max(self.phase, int(self.growth * num_seen))

    def begins_anew(self, num_rows: int, last_start: int) -> bool:
        """Whether there are so many more rows than when a network last began."""
        return self.restart is not None and num_rows >= self.restart * last_start

    def rates(self, num_rows: int, is_new: bool) -> list[float]:
        """The learning rate of every step of a phase."""
        if not is_new:
            return [self.learning_rate] * self.steps
        count = min(self.restart_steps, max(200, 2 * num_rows))
        return [self.peak * (0.5 * (1 + math.cos(math.pi * step / count)) + 1e-3) for step in range(count)]


PAPER = Schedule(growth=0.0, learning_rate=3e-3, batch_size=512, restart=None)


class Learner:
    """A network and its schedule."""

    def __init__(self, num_inputs: int, seed: int, schedule: Schedule) -> None:
        self.schedule, self._seed, self._num_inputs = schedule, seed, num_inputs
        self.network = Network(num_inputs, derived_seed(seed, "network"))
        self._generator = torch.Generator().manual_seed(derived_seed(seed, "batches"))
        self._last_start = 0
        self.num_steps = 0

    def learn(self, buffer: Buffer) -> None:
        """What a phase asks for."""
        count = len(buffer)
        if is_new := self.schedule.begins_anew(count, self._last_start):
            self._last_start = count
            self.network = Network(self._num_inputs, derived_seed(self._seed, "network", count))
        for rate in self.schedule.rates(count, is_new):
            rows = torch.randint(count, (self.schedule.batch_size,), generator=self._generator)
            self.network.train_on(buffer.inputs[rows], buffer.rewards[rows], rate)
            self.num_steps += 1
