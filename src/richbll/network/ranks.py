"""The processes that read data together; here, the one that reads alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor

PerRank = Mapping[int, Sequence[Tensor]]


class Block:
    """A stretch of work that processes do by themselves, and what they have to say of it at its end.

    To exchange anything takes as long as thousands of numbers would, so what is found goes with the news that all is
    well: any value that JSON has, which knows lists, but no tuples.
    """

    def __init__(self) -> None:
        self.value: Any = None
        self.said: list[Any] = []  # after the block: the values of all, the first process's first


class Ranks(Protocol):
    """Processes that each read a part of the data. Calls must come in the same order in all of them."""

    rank: int
    size: int

    def together(self, task: str) -> AbstractContextManager[Block]:
        """A block in which this process works by itself: an error in one process is an error in all."""

    def add(self, *tensors: Tensor) -> None:
        """Sum over all processes, in place."""

    def share(self, pieces: Tensor, sizes: Sequence[int]) -> Callable[[], Tensor]:
        """Begin to add up a flat tensor with one piece for each process, end to end.

        What is returned waits for the sum over all processes of this one's piece. It must be asked before the next but
        one `share` begins, and until then `pieces` must be left alone.
        """

    def swap(self, given: PerRank, wanted: PerRank) -> Callable[[], None]:
        """Begin to send some processes the tensors given for them, and to fill those wanted from them.

        What is returned waits until both are done. Sizes must be known on both sides; tensors are contiguous.
        """

    def rows(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensors of all processes, joined along a dimension in which their sizes may differ."""

    def same(self, *tensors: Tensor) -> None:
        """The values of the first process in all of them, in place."""

    def told(self, value: Any) -> list[Any]:
        """What every process says, the first one first: any value that JSON has, which knows lists, but no tuples."""

    def heed(self) -> None:
        """Inside a block of `together`: raises when another process has failed in it, so that nobody reads on.

        It may look now and then only, and not in the first block.
        """


class Alone:
    """One process: everything is there already.

    Examples:
        >>> Alone().rank, Alone().size
        (0, 1)
    """

    rank, size = 0, 1

    @contextmanager
    def together(self, task: str) -> Iterator[Block]:
        """Nobody to wait for."""
        block = Block()
        yield block
        block.said = [block.value]

    def add(self, *tensors: Tensor) -> None:
        """They are the sum."""

    def share(self, pieces: Tensor, sizes: Sequence[int]) -> Callable[[], Tensor]:
        """The only piece is its own."""
        return lambda: pieces

    def swap(self, given: PerRank, wanted: PerRank) -> Callable[[], None]:
        """There is nobody to swap with."""
        return lambda: None

    def rows(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """It is all there is."""
        return tensor

    def same(self, *tensors: Tensor) -> None:
        """They are its own."""

    def told(self, value: Any) -> list[Any]:
        """The only one speaks."""
        return [value]

    def heed(self) -> None:
        """Nobody else can fail."""
