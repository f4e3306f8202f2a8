"""Bayes by Backprop: a Gaussian for every weight, trained by the ELBO."""

import time
from dataclasses import dataclass, replace

from torch import Tensor

from richbll_bench.metrics import gaussian_nll
from richbll_bench.regression.backbones import stacked
from richbll_bench.regression.draws import Draws, predict_by
from richbll_bench.regression.factorised import GaussianNetwork
from richbll_bench.regression.network import rate
from richbll_bench.regression.seeds import random_numbers
from richbll_bench.regression.task import Fitted, Task
from richbll_bench.regression.together import Forward, Objective, Pairs, Together, select, train_for

_LOOK = 10  # draws for a look at the validation rows


def negative_elbo(num_rows: int) -> Objective:
    """NLL of one draw + KL / N."""

    def objective(network: Forward, x: Tensor, y: Tensor) -> Tensor:
        output, noise, kl = network(x)
        return gaussian_nll(output, noise, y) + kl / num_rows

    return objective


def _nll(network: Forward, x: Tensor, y: Tensor) -> Tensor:
    outputs, noise, _ = network(x.expand(_LOOK, *x.shape))
    return gaussian_nll(outputs.mean(dim=0), outputs.var(dim=0, correction=0) + noise, y)


def _rate(name: str, shape: tuple[int, ...]) -> float:
    return rate(name.removeprefix("layers."), shape)


@dataclass(frozen=True)
class BayesByBackprop:
    """The number of epochs is chosen by validation NLL; the noise is learned."""

    num_samples: int
    name: str = "bbb"
    title: str = "BBB"
    source: str = (
        "Blundell et al. (2015): prior N(0, 1) for every weight as it acts in the network, one draw a step with local "
        "reparametrisation (Kingma et al. 2015), KL / N, no weight decay, 50 draws to predict; the number of epochs by "
        "validation NLL. The noise is learned and begins at the targets' variance, the weights' standard deviation at "
        "0.01: of these, a hundredth and 0.1, the best on Boston's validation rows."
    )

    def fit(self, task: Task) -> list[Fitted]:
        """All seeds together; they share the random numbers of a step, so none depends on the others."""
        began = time.perf_counter()
        recipe = replace(task.setting.recipe, weight_decay=0.0)
        train, both = stacked([p.train for p in task.splits]), stacked([p.everything_but_test for p in task.splits])
        validation = stacked([part.validation for part in task.splits])

        def together(rows: Pairs) -> Together:
            objective = negative_elbo(rows[0].shape[1])
            return Together(self._networks(task), objective, recipe, _rate, "same")

        with random_numbers(0, "train"):
            found = select(together(train), task.seeds, train, validation, recipe, _nll)
        with random_numbers(0, "retrain"):
            final = train_for(together(both), task.seeds, both, [one.epochs for one in found])
        seconds = (time.perf_counter() - began) / len(task.seeds)

        fitted = []
        for seed, network, one, state in zip(task.seeds, self._networks(task), found, final, strict=True):
            network.load_state_dict(state)
            noise = float((2 * network.log_noise.detach()).exp())
            chosen = {"noise_variance": noise, "epochs": float(one.epochs)}
            fitted.append(Fitted(predict_by(self._draws(network, seed), noise), seconds, chosen))
        return fitted

    def _networks(self, task: Task) -> list[GaussianNetwork]:
        return [
            GaussianNetwork(part.train[0].shape[1], seed, task.setting.width, float(part.train[1].std()))
            for seed, part in zip(task.seeds, task.splits, strict=True)
        ]

    def _draws(self, network: GaussianNetwork, seed: int) -> Draws:
        def draws(x: Tensor) -> Tensor:
            with random_numbers(seed, "bbb"):
                return network(x.expand(self.num_samples, *x.shape))[0]

        return draws


method = BayesByBackprop(50)
