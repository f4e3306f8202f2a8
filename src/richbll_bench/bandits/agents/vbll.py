"""VBLL: a variational last layer for the network of all arms, trained with it; rewards are drawn from q(w)."""

import torch
from torch import Tensor

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.buffer import Buffer
from richbll_bench.bandits.neural import Neural
from richbll_bench.bandits.training import Schedule
from richbll_bench.methods.vbll import negative_elbo
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.seeds import derived_seed, random_numbers
from richbll_bench.regression.variational_head import VariationalHead, VariationalNetwork

_WIDTH, _FIRST_NOISE_STD = 100, 1.0


class VariationalLearner:
    """The schedule of the other agents, with the ELBO for a loss."""

    def __init__(self, num_inputs: int, seed: int, schedule: Schedule) -> None:
        self.schedule, self._seed, self._num_inputs = schedule, seed, num_inputs
        self._generator = torch.Generator().manual_seed(derived_seed(seed, "batches"))
        self._last_start = 0
        self._begin(0)

    def _begin(self, count: int) -> None:
        with random_numbers(self._seed, "head", count):
            head = VariationalHead(_WIDTH, _FIRST_NOISE_STD)
        hidden = backbone(self._num_inputs, derived_seed(self._seed, "network", count), _WIDTH)[:-1]
        self.network = VariationalNetwork(hidden, head)
        groups = [
            {
                "params": [p],
                "factor": rate(name.removeprefix("hidden."), tuple(p.shape)),
                "weight_decay": 0.0 if name.startswith("head.") else 1e-2,
            }
            for name, p in self.network.named_parameters()
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)

    def learn(self, buffer: Buffer) -> None:
        """What a phase asks for."""
        count = len(buffer)
        if is_new := self.schedule.begins_anew(count, self._last_start):
            self._last_start = count
            self._begin(count)
        for learning_rate in self.schedule.rates(count, is_new):
            self._step(buffer, learning_rate)

    def _step(self, buffer: Buffer, learning_rate: float) -> None:
        rows = torch.randint(len(buffer), (self.schedule.batch_size,), generator=self._generator)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group["factor"]
        self._optimizer.zero_grad()
        objective = negative_elbo(len(buffer))(self.network, buffer.inputs[rows], buffer.rewards[rows].unsqueeze(1))
        objective.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()


class Vbll(Neural):
    """One function of q(w) for all arms of a context."""

    def __init__(self, seed: int, num_features: int, num_arms: int) -> None:
        super().__init__(seed, num_features, num_arms)
        self._variational = VariationalLearner(num_features + num_arms, seed, self.schedule)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Keep the rows and train."""
        self.buffer.add(contexts, actions, rewards)
        with self.seconds.of("train"):
            self._variational.learn(self.buffer)

    def outputs(self, inputs: Tensor) -> Tensor:
        """w̄ᵀφ."""  # (n,)
        with torch.no_grad():
            return self._variational.network(inputs)[0].squeeze(1)

    def draw(self, inputs: Tensor) -> Tensor:
        """(w̄ + L ε)ᵀφ with one ε for each context."""  # (n · arms,)
        network = self._variational.network
        with torch.no_grad():
            phi = network.hidden(inputs)
            mean = (phi @ network.head.W_mean.mT).view(-1, self.num_arms)
            Z = (phi @ network.head.chol).view(-1, self.num_arms, _WIDTH)
        eps = torch.randn(len(Z), _WIDTH, generator=self.generator)
        return (mean + torch.einsum("nar,nr->na", Z, eps)).flatten()


kind = Kind(
    "VBLL",
    "Harrison et al. (2024): the objective, prior and first values of vbll 0.4's Regression on the action-conditioned "
    "network; schedule as Rich-BLL, noise learned from 1 on.",
    Vbll,
    cost=3.0,
)
