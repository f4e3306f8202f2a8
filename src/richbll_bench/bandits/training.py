"""How the network follows the data: warm steps in every phase, new starts while there are few rows, and hard rows.

A network that is trained on and on from its first rewards can stay where these have put it, with dead units and wrong
by more than the gap of 0.2 between arms inside of the wheel; a new one on the same rows starts free of that. Later a
new start would lose more than it gains: where an arm stops being the best is known from few rows only, those where it
was played and paid nothing. Such rows are drawn more often than others, by the size of their errors, and count less in
return, so that the objective is still the mean square (importance sampling):

    p_i = (1 − h) / N + h |e_i| / Σ|e|,   weight_i = 1 / (N p_i).

Agents act by a running average of the weights, which is calmer than the weights at a rate that still learns.
`wheel-why` has the variants without.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from richbll_bench.bandits.buffer import Buffer
from richbll_bench.bandits.network import Network
from richbll_bench.regression.seeds import derived_seed

_SMALLEST_ERROR = 1e-6
_PEAK = 1e-2  # the rate at which a new network begins


@dataclass(frozen=True)
class Schedule:
    """Phases and steps."""

    phase: int = 20  # contexts between two trainings
    growth: float = 0.01  # or this part of the contexts seen, when that is more
    steps: int = 20  # in every phase
    steps_per_context: float = 0.25  # or so many for each new context, when that is more
    learning_rate: float = 1e-2
    decay: float = 0.25  # the rate falls with this power of the rows, from `settled` on
    settled: int = 4000
    batch_size: int = 256
    restart: float | None = 1.5  # a new network when there are so many times the rows; None: never
    last_restart: int = 2000  # rows from which on the network is kept
    restart_steps: int = 1500  # at most; two for each row while there are few
    average: float = 0.995  # of the weights, from step to step; 0: the weights themselves
    hard: float = 0.5  # h, the part of a batch that is drawn by the size of the errors
    refresh: int = 200  # steps after which the errors are looked at again
    first_pulls: int = 3  # of each arm

    def phase_length(self, num_seen: int, num_arms: int) -> int:
        """The first phase is the first pulls."""
        if num_seen == 0:
            return self.first_pulls * num_arms
        return max(self.phase, int(self.growth * num_seen))

    def begins_anew(self, num_rows: int, last_start: int) -> bool:
        """Whether there are so many more rows than when a network last began."""
        return self.restart is not None and self.restart * last_start <= num_rows <= self.last_restart

    def rates(self, num_rows: int, is_new: bool) -> list[float]:
        """The learning rate of every step of a phase."""
        if is_new:  # falls to nothing by a cosine
            count = min(self.restart_steps, max(200, 2 * num_rows))
            return [_PEAK * (0.5 * (1 + math.cos(math.pi * step / count)) + 1e-3) for step in range(count)]
        rate = self.learning_rate * min(1.0, self.settled / num_rows) ** self.decay
        return [rate] * max(self.steps, int(self.steps_per_context * self.growth * num_rows))

    def batches(
        self, num_steps: int, errors: Callable[[], Tensor], generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For every step the rows of its batch and their weights; `errors()` are those of all rows (N,) by then."""
        for start in range(0, num_steps, self.refresh):
            size = errors().abs().double() + _SMALLEST_ERROR
            p = (1 - self.hard) / len(size) + self.hard * size / size.sum()
            edges = p.cumsum(0)
            shape = (min(self.refresh, num_steps - start), self.batch_size)
            where = torch.rand(shape, generator=generator, dtype=torch.float64) * edges[-1]
            rows = torch.searchsorted(edges, where).clamp_max_(len(size) - 1)
            yield from zip(rows, (1 / (len(size) * p[rows])).float(), strict=True)


PAPER = Schedule(growth=0.0, learning_rate=3e-3, decay=0.0, batch_size=512, restart=None, average=0.0, hard=0.0)


class Trained(Protocol):
    """What is trained: all parameters as one vector, and a reward for every row (n,)."""

    theta: Tensor

    def outputs(self, x: Tensor) -> Tensor:
        """f (n,)."""


N = TypeVar("N", bound=Trained)


class Learner(Generic[N]):
    """A network and its schedule; `make` has a seed, `train` a batch x, y, the rate, weights and the rows in all."""

    def __init__(
        self,
        make: Callable[[int], N],
        train: Callable[[N, Tensor, Tensor, float, Tensor, int], None],
        seed: int,
        schedule: Schedule,
    ) -> None:
        self.schedule, self._make, self._train, self._seed = schedule, make, train, seed
        self._generator = torch.Generator().manual_seed(derived_seed(seed, "batches"))
        self._last_start = 0
        self.num_steps = 0
        self._begin(0)

    def _begin(self, num_rows: int) -> None:
        seed = derived_seed(self._seed, "network", num_rows)
        self.network, self._moving = self._make(seed), self._make(seed)  # the average and the one that moves

    def learn(self, buffer: Buffer) -> None:
        """What a phase asks for."""
        count, average = len(buffer), self.schedule.average
        if is_new := self.schedule.begins_anew(count, self._last_start):
            self._last_start = count
            self._begin(count)
        moving, rates = self._moving, self.schedule.rates(count, is_new)
        batches = self.schedule.batches(
            len(rates), lambda: moving.outputs(buffer.inputs) - buffer.rewards, self._generator
        )
        for rate, (rows, weights) in zip(rates, batches, strict=True):
            self._train(moving, buffer.inputs[rows], buffer.rewards[rows], rate, weights, count)
            self.num_steps += 1
            if not is_new:
                self.network.theta.lerp_(moving.theta, 1 - average)
        if is_new:  # its rate has fallen to nothing
            self.network.theta.copy_(moving.theta)


def plain_learner(num_inputs: int, seed: int, schedule: Schedule) -> Learner[Network]:
    """For the network that all agents but one have, by the mean square."""
    return Learner(
        lambda seed: Network(num_inputs, seed),
        lambda network, x, y, rate, weights, _: network.train_on(x, y, rate, weights),
        seed,
        schedule,
    )
