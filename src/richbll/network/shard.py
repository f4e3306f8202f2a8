"""Which examples a DistributedSampler gives to this process, and which of them are only there to fill up.

The sampler deals examples out in turn, so that row j of a shard is example rank + j × num_replicas in its order. To
make all shards equally long it begins anew at the end: rows beyond the last example repeat others, and must not count
twice.
"""

from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from richbll.errors import DataError


@dataclass(frozen=True)
class Shard:
    """Every `step`-th example of `num_examples`, beginning with number `first`; the loader yields `num_rows` rows."""

    first: int
    step: int
    num_examples: int
    num_rows: int

    @property
    def num_own(self) -> int:
        """How many of the rows do not repeat others."""
        return len(range(self.first, self.num_examples, self.step))

    def count(self, start: int, size: int) -> int:
        """How many of `size` rows from row `start` on do not repeat others."""
        if self.num_own < self.num_rows < start + size:
            raise DataError(self._unequal(start + size))
        return min(size, max(0, self.num_own - start)) if self.num_own < self.num_rows else size

    def check_end(self, num_rows: int) -> None:
        """Every row was one example: else those that repeat others were not found."""
        if self.num_own < self.num_rows != num_rows:
            raise DataError(self._unequal(num_rows))

    def _unequal(self, num_rows: int) -> str:
        return (
            f"The loader's rows ({num_rows}) are not the {self.num_rows} examples of its DistributedSampler, so those "
            f"that the sampler repeats to fill up {self.step} shards cannot be told from others. Give the sampler "
            "drop_last=True, or a number of examples that can be divided."
        )


def shard_of(data: Any) -> Shard | None:
    """The shard that a DataLoader with a DistributedSampler reads; None for everything else."""
    if not isinstance(data, DataLoader):
        return None
    batches = data.batch_sampler if isinstance(data.batch_sampler, BatchSampler) else None
    sampler = data.sampler if batches is None else batches.sampler
    if not isinstance(sampler, DistributedSampler):
        return None
    num_rows = sampler.num_samples
    if batches is not None and batches.drop_last:
        num_rows -= num_rows % batches.batch_size
    examples: Any = sampler.dataset
    return Shard(sampler.rank, sampler.num_replicas, len(examples), num_rows)
