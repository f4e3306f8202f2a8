"""Agents with one network for all arms, f(x, a): they differ in how they draw rewards around it.

`Neural` keeps what was seen, trains the network by its schedule, and leaves two things to its kinds: what to rebuild
after training, and the draws.
"""

import torch
from torch import Tensor

from richbll_bench.bandits.agent import Seconds, each_arm_first
from richbll_bench.bandits.buffer import Buffer
from richbll_bench.bandits.network import with_action, with_every_action
from richbll_bench.bandits.training import Schedule, plain_learner
from richbll_bench.regression.denormals import denormals_are_zero
from richbll_bench.regression.seeds import derived_seed


class Neural:
    """Greedy, unless a kind says otherwise."""

    def __init__(self, seed: int, num_features: int, num_arms: int, schedule: Schedule | None = None) -> None:
        self.seconds = Seconds()
        self.num_arms, self.schedule = num_arms, schedule or Schedule()
        self.buffer = Buffer(num_features, num_arms)
        self.learner = plain_learner(num_features + num_arms, seed, self.schedule)
        self.generator = torch.Generator().manual_seed(derived_seed(seed, "draws"))

    def phase_length(self, num_seen: int) -> int:
        """By the schedule."""
        return self.schedule.phase_length(num_seen, self.num_arms)

    def act(self, contexts: Tensor) -> Tensor:
        """The arm of the highest draw."""  # (n,)
        first = each_arm_first(len(self.buffer), len(contexts), self.num_arms, self.schedule.first_pulls)
        if first is not None:
            return first
        with self.seconds.of("act"):
            return self.draw(with_every_action(contexts, self.num_arms)).view(-1, self.num_arms).argmax(dim=1)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Keep the rows, train, and rebuild what the draws need."""
        with self.seconds.of("posterior"):
            self.noticed(rewards - self.outputs(with_action(contexts, actions, self.num_arms)), actions)
        self.buffer.add(contexts, actions, rewards)
        with self.seconds.of("train"), denormals_are_zero():
            self.learn()
        with self.seconds.of("posterior"):
            self.rebuild()

    def best(self, contexts: Tensor) -> Tensor:
        """By the mean."""  # (n,)
        return self.outputs(with_every_action(contexts, self.num_arms)).view(-1, self.num_arms).argmax(dim=1)

    def outputs(self, inputs: Tensor) -> Tensor:
        """The mean reward at (x, e_a)."""  # (n,)
        return self.learner.network.outputs(inputs)

    def learn(self) -> None:
        """From what was seen, in time for the next contexts."""
        self.learner.learn(self.buffer)

    def noticed(self, errors: Tensor, actions: Tensor) -> None:
        """Errors (n,) of predictions that were made in time."""

    def rebuild(self) -> None:
        """After training."""

    def draw(self, inputs: Tensor) -> Tensor:
        """A reward for every row (x, e_a); rows of one context follow each other."""  # (n · arms,)
        return self.outputs(inputs)
