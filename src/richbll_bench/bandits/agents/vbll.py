"""VBLL: a variational last layer for the network of all arms, trained with it; rewards are drawn from q(w)."""

from functools import partial

import torch
from torch import Tensor

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import SCHEDULE
from richbll_bench.bandits.neural import Neural
from richbll_bench.bandits.training import Learner, Schedule
from richbll_bench.bandits.variational import Variational


class Vbll(Neural):
    """One function of q(w) for all arms of a context; the schedule of the other agents, with the ELBO for a loss."""

    def __init__(self, seed: int, num_features: int, num_arms: int, schedule: Schedule | None = None) -> None:
        super().__init__(seed, num_features, num_arms, schedule)
        num_inputs = num_features + num_arms
        self.variational = Learner(
            lambda seed: Variational(num_inputs, seed), Variational.train_on, seed, self.schedule
        )

    def learn(self) -> None:
        """The network and q(w) together."""
        self.variational.learn(self.buffer)

    def outputs(self, inputs: Tensor) -> Tensor:
        """w̄ᵀφ."""  # (n,)
        return self.variational.network.outputs(inputs)

    def draw(self, inputs: Tensor) -> Tensor:
        """(w̄ + L ε)ᵀφ with one ε for each context."""  # (n · arms,)
        mean, Z = self.variational.network.moments(inputs)
        Z = Z.view(-1, self.num_arms, Z.shape[1])
        eps = torch.randn(len(Z), Z.shape[2], generator=self.generator)
        return mean + torch.einsum("nar,nr->na", Z, eps).flatten()


kind = Kind(
    "VBLL",
    "Harrison et al. (2024): the objective, prior and first values of vbll 0.4's Regression on the action-conditioned "
    "network; trained as for Rich-BLL, where a new network takes over by the square of its mean; noise learned from 1 "
    "on. Nothing of it was chosen on the wheel.",
    partial(Vbll, schedule=SCHEDULE),
    cost=1.5,
    rule=SCHEDULE,
)
