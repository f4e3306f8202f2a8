"""What plays: an agent sees contexts, chooses arms, and is told the rewards of the arms that it chose.

It is asked for several contexts at once, as many as it wants before it learns again; each of them has its own draw.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class Agent(Protocol):
    """One run of one policy."""

    seconds: "Seconds"

    def phase_length(self, num_seen: int) -> int:
        """How many contexts it takes before it learns from their rewards."""

    def act(self, contexts: Tensor) -> Tensor:
        """An arm for every context (n, d)."""  # (n,)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Learn from n rewards."""

    def best(self, contexts: Tensor) -> Tensor:
        """The arms that it thinks best, without exploring: for the simple regret."""  # (n,)


@dataclass(frozen=True)
class Kind:
    """A policy: its name is its file's, and `make` begins a run with a seed, for contexts (n, d) and some arms."""

    title: str
    source: str  # what it follows
    make: Callable[[int, int, int], Agent]
    cost: float = 1.0  # of a run, relative to others
    rule: object = None  # its choices, by their repr

    @property
    def fingerprint(self) -> str:
        """Of the rule: records of another rule are others."""
        return fingerprint(self.rule)


def fingerprint(rule: object) -> str:
    """Short, and another one for every other rule."""
    return hashlib.sha256(repr(rule).encode()).hexdigest()[:8]


@dataclass
class Seconds:
    """Processor seconds of an agent, by what it did."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Count what is done inside."""
        began = time.process_time()
        yield
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - began


def each_arm_first(num_seen: int, count: int, num_arms: int, rounds: int) -> Tensor | None:
    """Arms in turn while a run is in its first `rounds` pulls of each; None afterwards."""  # (n,)
    if num_seen >= rounds * num_arms:
        return None
    return torch.arange(num_seen, num_seen + count) % num_arms
