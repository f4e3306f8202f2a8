"""The rows of one class, as a source of their own."""

from collections.abc import Callable, Iterator
from typing import Protocol

from torch import Tensor

from richbll.network.batches import Batch


class _Source(Protocol):
    can_be_reread: bool
    num_data: int | None

    def batches(self, task: str) -> Iterator[Batch]: ...


class ClassRows:
    """A source that leaves out all rows but those of one class."""

    def __init__(self, source: _Source, class_of: Callable[[Batch], Tensor], number: int) -> None:
        self.can_be_reread = source.can_be_reread
        self.num_data: int | None = None
        self._source = source
        self._class_of = class_of
        self._number = number

    def batches(self, task: str) -> Iterator[Batch]:
        """The batches, without rows of other classes."""
        for batch in self._source.batches(f"class {self._number}, {task}"):
            rows = (self._class_of(batch) == self._number).nonzero().flatten()
            if len(rows) > 0:
                yield batch.rows(rows)

    def is_empty(self) -> bool:
        """Whether the class has no rows at all."""
        return next(self.batches("looking"), None) is None
