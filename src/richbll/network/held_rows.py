"""A subsample of a stream, held in memory, so that it can be read as often as needed."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from richbll.checks import human_bytes
from richbll.core.subsample import smallest, subsample_size
from richbll.errors import MemoryBudgetError
from richbll.network.batches import Batch, Stream, map_tensors, tensors_in
from richbll.rng import row_keys


class HeldRows:
    """The chosen rows of a stream. Stands in for it, and knows how many examples it stands for."""

    can_be_reread = True

    def __init__(self, batches: list[Batch], num_data: int) -> None:
        self._batches = batches
        self.num_data: int | None = num_data

    def batches(self, task: str) -> Iterator[Batch]:
        """The held rows; there is nothing to wait for, so no progress bar is named after the task."""
        yield from self._batches


def hold_rows(stream: Stream, subsample: int | float, r: int, seed: int, most_bytes: int) -> HeldRows:
    """The k rows with the smallest hash(seed, index), read in one pass with at most 2k rows in memory."""
    num_data = None
    if isinstance(subsample, float) and stream.can_be_reread:
        num_data = sum(batch.size for batch in stream.batches("counting"))
    k = subsample_size(subsample, num_data, r)

    held: list[tuple[NDArray[np.uint64], Batch]] = []
    num_held = num_data = 0
    for batch in stream.batches("subsampling"):
        held.append((row_keys(seed, batch.start, batch.size), batch))
        num_held += batch.size
        num_data = batch.start + batch.size
        if num_held > 2 * k:
            held = _pruned(held, k)
            num_held = k
            _check_size(held, k, most_bytes)
    held = _pruned(held, k)
    _check_size(held, k, most_bytes)
    return HeldRows(_joined([batch for _, batch in held]), num_data)


def _pruned(held: list[tuple[NDArray[np.uint64], Batch]], k: int) -> list[tuple[NDArray[np.uint64], Batch]]:
    chosen = smallest(np.concatenate([keys for keys, _ in held]), k)
    pruned, start = [], 0
    for keys, batch in held:
        mask = chosen[start : start + len(keys)]
        start += len(keys)
        if mask.all():
            pruned.append((keys, batch))
        elif mask.any():
            rows = torch.from_numpy(mask.nonzero()[0])
            pruned.append((keys[mask], batch.rows(rows)))
    return pruned


def _check_size(held: list[tuple[NDArray[np.uint64], Batch]], k: int, most_bytes: int) -> None:
    tensors = [tensor for _, batch in held for tensor in tensors_in((batch.args, batch.kwargs, batch.targets))]
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if needed > most_bytes:
        raise MemoryBudgetError(
            f"Holding a subsample of {k} rows takes {human_bytes(needed)}, but memory_budget leaves "
            f"{human_bytes(most_bytes)} for it. Raise the budget or take fewer rows."
        )


def _joined(batches: list[Batch], most_rows: int = 256) -> list[Batch]:
    """Merge small neighbouring batches of equal form: a few rows of each are slow to run one by one."""
    joined: list[Batch] = []
    for batch in batches:
        last = joined[-1] if joined else None
        if last is not None and last.size + batch.size <= most_rows and _form(last) == _form(batch):
            joined[-1] = _followed_by(last, batch)
        else:
            joined.append(batch)
    return [replace(batch, index=index) for index, batch in enumerate(joined)]


def _followed_by(first: Batch, second: Batch) -> Batch:
    more = iter(tensors_in((second.args, second.kwargs, second.targets)))

    def extended(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, next(more)])

    args, kwargs, targets = map_tensors((first.args, first.kwargs, first.targets), extended)
    return replace(first, args=args, kwargs=kwargs, targets=targets, size=first.size + second.size)


def _form(batch: Batch) -> object:
    """What must agree for two batches to be one: shapes but for the rows; None where an input is not per example."""
    tensors = tensors_in((batch.args, batch.kwargs, batch.targets))
    if not all(batch.is_per_example(tensor) for tensor in tensors):
        return object()
    forms = [(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors]
    return (str(map_tensors((batch.args, batch.kwargs), lambda _: "tensor")), batch.targets is None, forms)
