"""VBLL: a variational last layer, trained with the network below it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbll import RegressionPredictive
from richbll_bench.metrics import gaussian_nll
from richbll_bench.regression.backbones import stacked
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.seeds import random_numbers
from richbll_bench.regression.task import Fitted, Predict, Task
from richbll_bench.regression.together import Forward, Objective, Pairs, Recipe, State, Together, select, train_for
from richbll_bench.regression.variational_head import VariationalHead, VariationalNetwork


def negative_elbo(num_rows: int) -> Objective:
    """Mean expected error + (KL − log-prior of the noise) / N."""

    def objective(network: Forward, x: Tensor, y: Tensor) -> Tensor:
        expected, kl, noise_prior = network(x, y)
        return expected + (kl - noise_prior) / num_rows

    return objective


def _nll(network: Forward, x: Tensor, y: Tensor) -> Tensor:
    mean, variance, noise = network(x)
    return gaussian_nll(mean, variance + noise, y)


def _rate(name: str, shape: tuple[int, ...]) -> float:
    return rate(name.removeprefix("hidden."), shape)


def _decay(name: str, shape: tuple[int, ...]) -> float:
    return 0.0 if name.startswith("head.") else 1.0


@dataclass(frozen=True)
class Vbll:
    """The learning rate and the number of epochs are chosen by validation NLL; the noise is learned."""

    rates: tuple[float, ...]
    name: str = "vbll"
    title: str = "VBLL"
    source: str = (
        "Harrison et al. (2024), the objective, prior and first values of vbll 0.4's Regression, dense covariance, "
        "regularisation 1 / N; AdamW at 1e-3, the paper's for all networks, or 3e-3, the package's tutorial's, no "
        "weight decay on the last layer; rate and number of epochs by validation NLL. The noise is learned and begins "
        "at the targets' variance: of that, a hundredth of it and the package's own random start it was best by far on "
        "Boston's validation rows."
    )

    def fit(self, task: Task) -> list[Fitted]:
        """All seeds together."""
        began = time.perf_counter()
        train, both = stacked([p.train for p in task.splits]), stacked([p.everything_but_test for p in task.splits])
        validation = stacked([part.validation for part in task.splits])

        def together(rows: Pairs, recipe: Recipe) -> Together:
            networks = self._networks(task)
            return Together(networks, negative_elbo(rows[0].shape[1]), recipe, _rate, decay=_decay)

        recipes = [replace(task.setting.recipe, learning_rate=rate) for rate in self.rates]
        tried = [select(together(train, one), task.seeds, train, validation, one, _nll) for one in recipes]
        best = [min(range(len(recipes)), key=lambda k: tried[k][number].error) for number in range(len(task.seeds))]
        found = [tried[k][number] for number, k in enumerate(best)]
        final: list[State] = [{} for _ in best]
        for k, recipe in enumerate(recipes):  # networks that chose another rate are put away at once
            epochs = [one.epochs if best[number] == k else 0 for number, one in enumerate(found)]
            states = train_for(together(both, recipe), task.seeds, both, epochs)
            final = [states[number] if best[number] == k else old for number, old in enumerate(final)]
        seconds = (time.perf_counter() - began) / len(task.seeds)

        fitted = []
        for network, one, state, k in zip(self._networks(task), found, final, best, strict=True):
            network.load_state_dict(state)
            noise = float((2 * network.head.noise_logdiag.detach()).exp())
            chosen = {"noise_variance": noise, "epochs": float(one.epochs), "learning_rate": self.rates[k]}
            fitted.append(Fitted(_predicting(network), seconds, chosen))
        return fitted

    def _networks(self, task: Task) -> Sequence[VariationalNetwork]:
        num_inputs, width = task.splits[0].train[0].shape[1], task.setting.width
        networks = []
        for seed, part in zip(task.seeds, task.splits, strict=True):
            with random_numbers(seed, "head"):
                head = VariationalHead(width, float(part.train[1].std()))
            networks.append(VariationalNetwork(backbone(num_inputs, seed, width)[:-1], head))
        return networks


def _predicting(network: VariationalNetwork) -> Predict:
    def predict(x: Tensor) -> RegressionPredictive:
        with torch.no_grad():
            return RegressionPredictive(*network(x))

    return predict


method = Vbll((1e-3, 3e-3))
