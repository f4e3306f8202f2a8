"""The rows of one class, as a source of their own."""

from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor

from richbll.network.batches import Batch
from richbll.network.ranks import Ranks


class _Source(Protocol):
    can_be_reread: bool
    num_data: int | None
    ranks: Ranks

    @property
    def num_rows(self) -> int | None: ...

    def batches(self, task: str, state: dict[str, Tensor] | None = None) -> Iterator[Batch]: ...


class ClassRows:
    """A source that leaves out all rows but those of one class."""

    keeps_state = False

    def __init__(self, source: _Source, class_of: Callable[[Batch], Tensor], number: int) -> None:
        self.can_be_reread = source.can_be_reread
        self.num_data: int | None = None
        self.ranks = source.ranks
        self._source = source
        self._class_of = class_of
        self._number = number

    @property
    def num_rows(self) -> int | None:
        """No more than there are of all classes."""
        return self._source.num_rows

    def peek(self) -> Batch:
        """The first batch of the class."""
        return next(self.batches("looking"))

    def batches(self, task: str, state: dict[str, Tensor] | None = None) -> Iterator[Batch]:
        """The batches, without rows of other classes."""
        for batch in self._source.batches(f"class {self._number}, {task}"):
            rows = (self._class_of(batch) == self._number).nonzero().flatten().cpu()
            if len(rows) > 0:
                yield batch.rows(rows)
