"""A deep ensemble: several backbones that differ in their first weights and in the order of the rows.

mean = mean of f_m(x),   variance = variance of f_m(x) over m + noise
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from richbll_bench.regression.backbones import train_backbones
from richbll_bench.regression.draws import error_of_mean, predict_by
from richbll_bench.regression.seeds import derived_seed
from richbll_bench.regression.task import Fitted, Task
from richbll_bench.regression.together import State


@dataclass(frozen=True)
class Ensemble:
    """The first member is the backbone that the other methods have; the others are trained like it."""

    num_members: int
    name: str = "ensemble"
    title: str = "Ensemble"
    source: str = (
        "Lakshminarayanan et al. (2017): five networks, without adversarial training. Each is trained like the "
        "backbone and has its own number of epochs; the noise is the validation error of their mean."
    )

    def fit(self, task: Task) -> list[Fitted]:
        """All further members of all seeds together."""
        began = time.perf_counter()
        firsts, more = task.backbones, self.num_members - 1
        parts = [part for part in task.splits for _ in range(more)]
        seeds = [derived_seed(seed, "member", number) for seed in task.seeds for number in range(1, self.num_members)]
        found, final = train_backbones(task.setting, seeds, parts) if more else ([], [])
        seconds = (time.perf_counter() - began) / len(firsts)

        fitted = []
        for number, first in enumerate(firsts):
            mine = slice(number * more, (number + 1) * more)
            epochs = [first.epochs, *(one.epochs for one in found[mine])]
            selected = [first.selected, *(_loaded(first.model, one.state) for one in found[mine])]
            noise = error_of_mean(_members(selected), first.split.validation)
            models = [first.model, *(_loaded(first.model, state) for state in final[mine])]
            chosen = {"noise_variance": noise, "epochs": sum(epochs) / len(epochs)}
            fitted.append(Fitted(predict_by(_members(models), noise), seconds, chosen))
        return fitted


def _loaded(model: nn.Module, state: State) -> nn.Module:
    loaded = copy.deepcopy(model)
    loaded.load_state_dict(state)
    return loaded


def _members(models: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.stack([model(x) for model in models])  # (M, n, 1)


method = Ensemble(5)
