"""What a likelihood wants to know of each example: which gradients, and its weight in which posterior."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from richbll.network.batches import Batch


@dataclass(frozen=True)
class Reading:
    """Of one batch. By default every output's gradient is read, and every example has weight 1 in one posterior."""

    columns: Tensor | None = None  # (n,) the one output whose gradient an example gives
    weights: Tensor | None = None  # (n, g) the weight of an example in each of g posteriors
    residuals: Tensor | None = None  # (n, c) y − f, where that has a meaning


class Reader(Protocol):
    """How a likelihood looks at data."""

    @property
    def one_column(self) -> bool:
        """Whether each example gives the gradient of one output only."""

    def read(self, batch: Batch, f: Tensor) -> Reading:
        """Check the targets against the outputs f (n, c), and say what to do with each example."""
