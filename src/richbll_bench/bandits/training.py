"""How the network follows the data: warm steps in every phase, new starts, hard rows, and an average of the weights.

A network that is trained on and on from its first rewards can stay where these have put it, with dead units and wrong
by more than the gap of 0.2 between arms inside of the wheel. So another one begins whenever there are half as many rows
again, and takes over if it fits them better. Where an arm stops being the best is known from few rows only, those where
it was played and paid nothing. Such rows are drawn more often than others, by the size of their errors, and count less
in return, so that the objective is still the mean square (importance sampling):

    p_i = (1 − h) / N + h |e_i| / Σ|e|,   weight_i = 1 / (N p_i).

Agents act by a running average of the weights over about a phase, which is calmer than the weights at a rate that still
learns. `wheel-why` has the variants without.
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
    steps: int = 50  # in every phase
    steps_per_context: float = 0.25  # or so many for each new context, when that is more
    learning_rate: float = 1e-2
    decay: float = 0.25  # the rate falls with this power of the rows, from `settled` on
    settled: int = 4000
    batch_size: int = 256
    restart: float | None = 1.5  # another network begins when there are so many times the rows; None: never
    restart_steps: int = 1500  # of it at most; two for each row while there are few
    average: bool = True  # act by the average of the weights
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
        return self.restart is not None and num_rows >= self.restart * last_start

    def rates(self, num_rows: int, is_new: bool) -> list[float]:
        """The learning rate of every step of a phase."""
        if is_new:  # falls to nothing by a cosine
            count = min(self.restart_steps, max(200, 2 * num_rows))
            return [_PEAK * (0.5 * (1 + math.cos(math.pi * step / count)) + 1e-3) for step in range(count)]
        rate = self.learning_rate * min(1.0, self.settled / num_rows) ** self.decay
        return [rate] * max(self.steps, int(self.steps_per_context * self.growth * num_rows))

    def batches(
        self, num_steps: int, num_rows: int, errors: Callable[[], Tensor], generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """For every step the rows of its batch and their weights; `errors()` are those of all rows (N,) by then."""
        if self.hard == 0:
            weights = torch.ones(self.batch_size)
            for _ in range(num_steps):
                yield torch.randint(num_rows, (self.batch_size,), generator=generator), weights
            return
        for start in range(0, num_steps, self.refresh):
            size = errors().abs().double() + _SMALLEST_ERROR
            p = (1 - self.hard) / num_rows + self.hard * size / size.sum()
            edges = p.cumsum(0)
            shape = (min(self.refresh, num_steps - start), self.batch_size)
            where = torch.rand(shape, generator=generator, dtype=torch.float64) * edges[-1]
            rows = torch.searchsorted(edges, where).clamp_max_(num_rows - 1)
            yield from zip(rows, (1 / (num_rows * p[rows])).float(), strict=True)


PAPER = Schedule(
    growth=0.0, steps=20, learning_rate=3e-3, decay=0.0, batch_size=512, restart=None, average=False, hard=0.0
)


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
        self.network, self._moving = self._new(0), self._new(0)  # the average, and the one that moves

    def _new(self, num_rows: int) -> N:
        return self._make(derived_seed(self._seed, "network", num_rows))

    def learn(self, buffer: Buffer) -> None:
        """What a phase asks for."""
        count = len(buffer)
        if self.schedule.begins_anew(count, self._last_start):
            is_first, self._last_start = self._last_start == 0, count
            new = self._new(count)
            for _ in self._steps(new, buffer, self.schedule.rates(count, is_new=True)):
                pass
            if is_first or _mean_square(new, buffer) < _mean_square(self.network, buffer):
                self._moving = new
                self.network.theta.copy_(new.theta)
                return
        rates = self.schedule.rates(count, is_new=False)
        for _ in self._steps(self._moving, buffer, rates):
            self.network.theta.lerp_(self._moving.theta, 1 / len(rates) if self.schedule.average else 1.0)

    def _steps(self, network: N, buffer: Buffer, rates: list[float]) -> Iterator[None]:
        """One step after the other."""

        def errors() -> Tensor:
            return network.outputs(buffer.inputs) - buffer.rewards

        batches = self.schedule.batches(len(rates), len(buffer), errors, self._generator)
        for rate, (rows, weights) in zip(rates, batches, strict=True):
            self._train(network, buffer.inputs[rows], buffer.rewards[rows], rate, weights, len(buffer))
            self.num_steps += 1
            yield


def _mean_square(network: Trained, buffer: Buffer) -> float:
    return float((network.outputs(buffer.inputs) - buffer.rewards).square().mean())


def plain_learner(num_inputs: int, seed: int, schedule: Schedule) -> Learner[Network]:
    """For the network that all agents but one have, by the mean square."""
    return Learner(
        lambda seed: Network(num_inputs, seed),
        lambda network, x, y, rate, weights, _: network.train_on(x, y, rate, weights),
        seed,
        schedule,
    )
