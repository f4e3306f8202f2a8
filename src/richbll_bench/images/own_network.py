"""Methods that train networks of their own, and average over passes through the whole of them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from richbll_bench.images.draws import averaged
from richbll_bench.images.task import Prediction, Task
from richbll_bench.regression.seeds import random_numbers

Pass = Callable[[Tensor], Tensor]  # inputs (n, 3, 32, 32) → logits (n, C)
MOST_DRAWS = 10  # each is a pass through the whole network


def by_passes(task: Task, passes: list[Pass]) -> Callable[[str], Prediction]:
    """Every pass over a whole set of images, one after the other, the same random numbers at every call."""

    def predict(name: str) -> Prediction:
        def logits(number: int, run: Pass) -> Tensor:
            with torch.no_grad(), random_numbers(task.seed, "pass", number, name):
                return torch.cat([run(x) for x, _ in task.loader(name)])

        return averaged(logits(number, run) for number, run in enumerate(passes))

    return predict


def num_draws(task: Task) -> int:
    """How often a network that draws is run."""
    return min(task.num_samples, MOST_DRAWS)


def with_dropout(model: nn.Module) -> nn.Module:
    """In eval mode but for its dropout."""
    model.eval()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.train()
    return model
