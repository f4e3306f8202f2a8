"""MC dropout: units are dropped in training and in prediction, and the outputs of many passes are a sample.

    mean = mean of f(x; z_k),   variance = variance of f(x; z_k) over k + noise,   z_k ~ Bernoulli(1 − p) / (1 − p)

The networks of all seeds and rates drop the same units in a step. So a network does not depend on which others are
trained beside it, and rates are compared on the same random numbers.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from richbll_bench.regression.backbones import stacked
from richbll_bench.regression.draws import Draws, error_of_mean, nll_of, predict_by
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.seeds import random_numbers
from richbll_bench.regression.split import Split
from richbll_bench.regression.task import Fitted, Task
from richbll_bench.regression.together import (
    Forward,
    Recipe,
    Selected,
    State,
    Together,
    select,
    squared_error,
    train_for,
)


class Dropping(nn.Module):
    """The backbone with dropout after its hidden layers, or after the last of them alone."""

    p: Tensor  # ()

    def __init__(self, num_inputs: int, seed: int, width: int, p: float, last_only: bool) -> None:
        super().__init__()
        self.layers = backbone(num_inputs, seed, width)
        self.last_only = last_only
        self.register_buffer("p", torch.tensor(p))

    def forward(self, x: Tensor, drop: bool = True) -> Tensor:
        """f(x), with other units dropped for every row and at every call, or with none."""
        first, relu, second, _, readout = self.layers
        a = relu(first(x))
        if drop and not self.last_only:
            a = self._dropped(a)
        a = relu(second(a))
        return readout(self._dropped(a) if drop else a)

    def _dropped(self, a: Tensor) -> Tensor:
        return a * (torch.rand(a.shape) >= self.p) / (1 - self.p)


def _rate(name: str, shape: tuple[int, ...]) -> float:
    return rate(name.removeprefix("layers."), shape)


def _error_without(network: Forward, x: Tensor, y: Tensor) -> Tensor:
    """With nothing dropped: one pass, and close to the mean of many."""
    return (network(x, drop=False) - y).square().mean()


def dropout_draws(network: nn.Module, seed: int, num_samples: int) -> Draws:
    """The outputs of so many passes, the same at every call."""

    def draws(x: Tensor) -> Tensor:
        with random_numbers(seed, "dropout"):
            return network(x.expand(num_samples, *x.shape))

    return draws


@dataclass(frozen=True)
class McDropout:
    """The number of epochs of every rate by validation error, the rate by validation NLL."""

    name: str
    title: str
    source: str
    last_only: bool = False
    rates: tuple[float, ...] = (0.005, 0.01, 0.05, 0.1)
    num_samples: int = 50

    def fit(self, task: Task) -> list[Fitted]:
        """All rates of all seeds together, then the best of every seed again."""
        began = time.perf_counter()
        found = self._select(task)
        of_seed = [found[start : start + len(self.rates)] for start in range(0, len(found), len(self.rates))]
        best = [self._best(task, *one) for one in zip(task.seeds, task.splits, of_seed, strict=True)]
        final = self._retrain(task, [self.rates[number] for number, _ in best], [one.epochs for _, one in best])
        seconds = (time.perf_counter() - began) / len(task.seeds)

        fitted = []
        for seed, part, (number, one), state in zip(task.seeds, task.splits, best, final, strict=True):
            noise = error_of_mean(self._draws(task, seed, part, one.state), part.validation)
            chosen = {"noise_variance": noise, "epochs": float(one.epochs), "p": self.rates[number]}
            predict = predict_by(self._draws(task, seed, part, state), noise)
            fitted.append(Fitted(predict, seconds, chosen))
        return fitted

    def _network(self, task: Task, seed: int, part: Split, p: float = 0.0) -> Dropping:
        return Dropping(part.train[0].shape[1], seed, task.setting.width, p, self.last_only)

    def _select(self, task: Task) -> list[Selected]:
        recipe: Recipe = task.setting.recipe
        every = [(seed, part, p) for seed, part in zip(task.seeds, task.splits, strict=True) for p in self.rates]
        together = Together([self._network(task, *one) for one in every], squared_error, recipe, _rate, "same")
        train, validation = stacked([part.train for _, part, _ in every]), [part.validation for _, part, _ in every]
        with random_numbers(0, "train"):
            seeds = [seed for seed, _, _ in every]
            return select(together, seeds, train, stacked(validation), recipe, _error_without)

    def _best(self, task: Task, seed: int, part: Split, found: list[Selected]) -> tuple[int, Selected]:
        def nll(one: Selected) -> float:
            draws = self._draws(task, seed, part, one.state)
            return nll_of(predict_by(draws, error_of_mean(draws, part.validation)), part.validation)

        return min(enumerate(found), key=lambda numbered: nll(numbered[1]))

    def _retrain(self, task: Task, rates: list[float], epochs: list[int]) -> list[State]:
        networks = [self._network(task, *one) for one in zip(task.seeds, task.splits, rates, strict=True)]
        together = Together(networks, squared_error, task.setting.recipe, _rate, "same")
        with random_numbers(0, "retrain"):
            return train_for(together, task.seeds, stacked([part.everything_but_test for part in task.splits]), epochs)

    def _draws(self, task: Task, seed: int, part: Split, state: State) -> Draws:
        network = self._network(task, seed, part)
        network.load_state_dict(state)
        return dropout_draws(network, seed, self.num_samples)
