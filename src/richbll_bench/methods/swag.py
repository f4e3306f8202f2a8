"""SWA-Gaussian along the training of the backbone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from richbll_bench.regression.backbones import stacked
from richbll_bench.regression.draws import Draws, error_of_mean, predict_by
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.swag import Collected
from richbll_bench.regression.task import Fitted, Task
from richbll_bench.regression.together import Pairs, State, Together, orders, squared_error


@dataclass(frozen=True)
class Swag:
    """As many epochs as the backbone of the seed, which validation error has chosen for the same training."""

    num_samples: int
    num_columns: int
    name: str = "swag"
    title: str = "SWAG"
    source: str = (
        "Maddox et al. (2019): constant rate 1e-3, weights collected once an epoch from half of the training on, low "
        "rank 20, 30 draws. Trained like the backbone and for as many epochs; the noise is the validation error of the "
        "draws' mean."
    )

    def fit(self, task: Task) -> list[Fitted]:
        """All seeds together, on the training rows for the noise, then on training and validation rows."""
        epochs = [trained.epochs for trained in task.backbones]
        began = time.perf_counter()
        first = self._collect(task, stacked([part.train for part in task.splits]), epochs)
        final = self._collect(task, stacked([part.everything_but_test for part in task.splits]), epochs)
        seconds = (time.perf_counter() - began) / len(task.seeds)

        fitted = []
        for number, (trained, part) in enumerate(zip(task.backbones, task.splits, strict=True)):
            noise = error_of_mean(self._draws(trained.model, first, number, trained.seed), part.validation)
            chosen = {"noise_variance": noise, "epochs": float(trained.epochs)}
            predict = predict_by(self._draws(trained.model, final, number, trained.seed), noise)
            fitted.append(Fitted(predict, seconds, chosen))
        return fitted

    def _collect(self, task: Task, rows: Pairs, epochs: Sequence[int]) -> Collected:
        networks = [backbone(rows[0].shape[2], seed, task.setting.width) for seed in task.seeds]
        together = Together(networks, squared_error, task.setting.recipe, rate)
        collected = Collected([(n + 1) // 2 for n in epochs], epochs, _num_weights(networks[0]), self.num_columns)
        ways = orders(task.seeds, rows[0].shape[1])
        for epoch in range(1, max(epochs) + 1):
            together.epoch(*rows, next(ways))
            collected.add(epoch, together.weights())
        return collected

    def _draws(self, like: nn.Module, collected: Collected, number: int, seed: int) -> Draws:
        weights = _as_state(like, collected.draw(number, self.num_samples, seed))
        return lambda x: vmap(lambda state: functional_call(like, state, (x,)))(weights)  # (K, n, 1)


def _num_weights(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _as_state(like: nn.Module, weights: Tensor) -> State:
    """Weights (K, P) by the names and shapes of a network."""
    named = dict(like.named_parameters())
    parts = torch.split(weights, [parameter.numel() for parameter in named.values()], dim=1)
    return {name: part.reshape(-1, *named[name].shape) for name, part in zip(named, parts, strict=True)}


method = Swag(30, 20)
