"""Train, validation and test rows of one seed, prepared as in the paper's appendix."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from richbll_bench.data.reading import Examples

Pair = tuple[Tensor, Tensor]  # inputs (n, d), targets (n, 1)
_TRAIN, _VALIDATION = 0.72, 0.18  # the rest is the test set


@dataclass(frozen=True)
class Split:
    """Inputs are standardised and targets centred by the training rows; targets keep their units."""

    train: Pair
    validation: Pair
    test: Pair
    center: Tensor  # (d,) of the inputs
    scale: Tensor  # (d,)

    @property
    def everything_but_test(self) -> Pair:
        """Train and validation together, for retraining."""
        (x, y), (x_more, y_more) = self.train, self.validation
        return torch.cat([x, x_more]), torch.cat([y, y_more])

    def limited(self, num_rows: int) -> "Split":
        """So many training and validation rows together, in the same proportion; the test rows are the same."""
        num_train = round(num_rows * _TRAIN / (_TRAIN + _VALIDATION))
        train, validation = (
            (x[:count], y[:count])
            for (x, y), count in ((self.train, num_train), (self.validation, num_rows - num_train))
        )
        return replace(self, train=train, validation=validation)

    def prepared(self, x: np.ndarray) -> Tensor:
        """Other inputs of the same kind, as the network sees them."""
        return ((torch.from_numpy(x) - self.center) / self.scale).float()


def split(examples: Examples, seed: int, num_rows: int | None = None) -> Split:
    """72 % / 18 % / 10 % of all rows, or of so many of them."""
    order = np.random.default_rng(seed).permutation(len(examples.y))[:num_rows]
    first, second = round(_TRAIN * len(order)), round((_TRAIN + _VALIDATION) * len(order))
    parts = np.split(order, [first, second])
    x, y = torch.from_numpy(examples.x), torch.from_numpy(examples.y).unsqueeze(1)
    center, scale = x[parts[0]].mean(dim=0), x[parts[0]].std(dim=0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # a constant column says nothing, and stays 0
    level = y[parts[0]].mean()
    train, validation, test = (
        (((x[rows] - center) / scale).float(), (y[rows] - level).float()) for rows in map(torch.from_numpy, parts)
    )
    return Split(train, validation, test, center, scale)
