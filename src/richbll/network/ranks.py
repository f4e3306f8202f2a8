"""The processes that read data together; here, the one that reads alone."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """Processes that each read a part of the data. Calls must come in the same order in all of them."""

    rank: int
    size: int

    def together(self, task: str) -> AbstractContextManager[None]:
        """A block in which this process works by itself: an error in one process is an error in all."""

    def add(self, *tensors: Tensor) -> None:
        """Sum over all processes, in place."""

    def add_at(self, owner: int, tensor: Tensor) -> None:
        """Sum over all processes, in place, at one of them; elsewhere the content is lost."""

    def rows(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensors of all processes, joined along a dimension in which their sizes may differ."""

    def all_agree(self, flag: bool) -> bool:
        """Whether all processes say yes."""


class Alone:
    """One process: everything is there already."""

    rank, size = 0, 1

    def together(self, task: str) -> AbstractContextManager[None]:
        """Nobody to wait for."""
        return nullcontext()

    def add(self, *tensors: Tensor) -> None:
        """They are the sum."""

    def add_at(self, owner: int, tensor: Tensor) -> None:
        """It is the sum."""

    def rows(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """It is all there is."""
        return tensor

    def all_agree(self, flag: bool) -> bool:
        """The only one decides."""
        return flag
