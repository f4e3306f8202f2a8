"""What a rule sees of a call, and what it tells."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from richbll.network.structure import Dense, Gradient

FLAT = "flat"  # rows (n · T, …)
SHARED, ROW = "shared", "shared row"  # the same for all examples: (…), or (1, …) where the batch could be
ALIKE = (SHARED, ROW)
Layout = int | str  # the dimension of the batch, or one of these


def is_run_again() -> bool:
    """Inside of a checkpoint: torch runs the function a second time, by itself, and must find what was saved here."""
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return hooks is None or hooks(True) is not None


class Unruled(Exception):  # noqa: N818
    """This call is not one that the rule knows: its parameters take the general route."""


@dataclass(frozen=True)
class Examples:
    """Where the examples are in the tensors of one call."""

    layout: Layout
    num_rows: int

    def first(self, values: Tensor, lead: int = 0) -> Tensor:
        """With the batch right after `lead` leading dimensions; rows (n · T, …) become (n, T, …)."""
        if self.layout in ALIKE:
            shape = values.shape
            return values.unsqueeze(lead).expand(*shape[:lead], self.num_rows, *shape[lead:])
        if self.layout == FLAT:
            return values.reshape(*values.shape[:lead], self.num_rows, -1, *values.shape[lead + 1 :])
        return values if self.layout == 0 else values.movedim(lead + int(self.layout), lead)

    def vectors(self, values: Tensor) -> Tensor:
        """Positions in one dimension."""  # (1, n, T, d)
        return positions(self.first(values).unsqueeze(0))

    def without(self, shape: tuple[int, ...], num_dims: int) -> tuple[int, ...]:
        """The shape of something that was broadcast against `num_dims` dimensions, without that of the batch."""
        full = (1,) * (num_dims - len(shape)) + tuple(shape)
        if self.layout in ALIKE:
            return full
        if self.layout == FLAT:
            if full[0] != 1:
                raise Unruled
            return full  # where the rows were, there are positions now
        if full[int(self.layout)] != 1:
            raise Unruled
        return full[: int(self.layout)] + full[int(self.layout) + 1 :]


Make = Callable[[Tensor, Examples], Gradient]  # from ∂f/∂z (c, n, …) to the gradient by a parameter
Used = tuple[Any, Make, int]  # a parameter, how its gradient is made, and at which element it begins


class Tracer(Protocol):
    """Takes down what rules say."""

    def leaf(self, value: Any) -> Any:
        """A parameter without its history, requiring a gradient where it counts; anything else as it is."""

    def uses(self, output: Tensor, *used: Used) -> Tensor:
        """The output came from these parameters. Returns it as the model shall see it."""


Rule = Callable[[Tracer, Any, tuple[Any, ...], dict[str, Any]], Any]


def positions(values: Tensor) -> Tensor:
    """(c, n, …, d) as (c, n, T, d)."""
    return values.reshape(*values.shape[:2], -1, values.shape[-1])


def summed_to(values: Tensor, shape: tuple[int, ...]) -> Dense:
    """(c, n, …) summed over the dimensions that something of this shape was broadcast along."""
    along = [2 + d for d, size in enumerate(shape) if size == 1 and values.shape[2 + d] != 1]
    summed = values.sum(dim=along) if along else values
    return Dense(summed.reshape(*values.shape[:2], -1))
