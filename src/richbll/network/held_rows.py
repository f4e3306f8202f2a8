"""A subsample of a stream, held in memory, so that it can be read as often as needed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from richbll.checks import human_bytes
from richbll.core.subsample import smallest, subsample_size
from richbll.errors import MemoryBudgetError
from richbll.network.batches import Batch, Stream, map_tensors, tensors_in
from richbll.network.ranks import Ranks
from richbll.rng import row_keys

Strata = Callable[[Batch], Tensor]  # a number for every row; the subsample is drawn within each


class HeldRows:
    """The chosen rows of a stream. Stands in for it, and knows how many examples it stands for."""

    can_be_reread = True
    keeps_state = False

    def __init__(self, batches: list[Batch], num_data: int, ranks: Ranks, first: Batch) -> None:
        self._batches = batches
        self._first = batches[0] if batches else first  # a process may hold none of the rows
        self.num_data: int | None = num_data
        self.ranks = ranks

    @property
    def num_rows(self) -> int | None:
        """How many rows are held."""
        return sum(batch.size for batch in self._batches)

    def peek(self) -> Batch:
        """The first batch; where no row is held, the first of the stream."""
        return self._first

    def batches(self, task: str, state: dict[str, Tensor] | None = None) -> Iterator[Batch]:
        """The held rows; there is nothing to wait for, so no progress bar is named after the task."""
        for batch in self._batches:
            self.ranks.heed()
            yield batch


@dataclass(frozen=True)
class _Part:
    """Rows of one batch that are still in the running."""

    keys: NDArray[np.uint64]
    strata: NDArray[np.int64]
    batch: Batch


def hold_rows(
    stream: Stream, subsample: Any, least: int, seed: int, most_bytes: int, strata: Strata | None = None
) -> HeldRows:
    """The k rows with the smallest hash(seed, index), of each stratum where there are strata, in one pass.

    Together they are never fewer than `least`: k grows until there are so many, or all. At most about twice the rows
    that are kept are in memory. With strata, the k_c rows kept of N_c weigh N_c/k_c, relative to the N/k of all.
    Several processes draw from the rows of all.
    """
    groups_of = strata or (lambda batch: torch.zeros(batch.size, dtype=torch.int64))
    counts, ranks = None, stream.ranks
    if not isinstance(subsample, Integral) and stream.can_be_reread:
        with ranks.together("counting"):
            counts = _counted(groups_of(batch) for batch in stream.batches("counting"))
        counts = _added(counts or Counter(), ranks)

    held: list[_Part] = []
    seen: Counter[int] = Counter()

    def sizes() -> Callable[[int], int]:
        """k of a stratum, given what was seen so far; of more rows it is lower, or the same."""
        level = _level(seen, least)
        return lambda group: subsample_size(subsample, None if counts is None else counts[group], level)

    with ranks.together("subsampling"):
        num_held = num_bytes = 0
        for batch in stream.batches("subsampling"):
            groups = groups_of(batch).cpu()
            seen.update(_counted([groups]))
            held.append(_Part(_keys(seed, stream.numbers(batch)), groups.numpy(), batch.copied()))
            num_held += batch.size
            num_bytes += _bytes_of(held[-1:])
            _check_size(num_held, num_bytes, 2 * most_bytes)
            size_of = sizes()
            if num_held > 2 * sum(min(count, size_of(group)) for group, count in seen.items()):
                held = _pruned(held, size_of)
                num_held, num_bytes = sum(len(part.keys) for part in held), _bytes_of(held)
                _check_size(num_held, num_bytes, most_bytes)
        held = _pruned(held, sizes())
    seen = _added(seen, ranks)
    held = _pruned_by_all(held, sizes(), ranks)
    with ranks.together("holding a subsample"):
        _check_size(sum(len(part.keys) for part in held), _bytes_of(held), most_bytes)
    batches, num_data = [part.batch for part in held], sum(seen.values())
    if strata is not None:
        kept = _added(_counted(torch.from_numpy(part.strata) for part in held), ranks)
        weight = {group: seen[group] / kept[group] * sum(kept.values()) / num_data for group in kept}
        batches = [replace(part.batch, row_weights=_look_up(weight, part.strata)) for part in held]
    return HeldRows(_joined(batches), num_data, ranks, stream.peek())


def _keys(seed: int, numbers: range) -> NDArray[np.uint64]:
    return row_keys(seed, numbers.start, len(numbers) * numbers.step)[:: numbers.step]


def _level(counts: Counter[int], least: int) -> int:
    """The smallest q with Σ min(N_c, q) ≥ `least`, or the largest N_c where there are not so many rows at all."""
    left, rest = least, len(counts)
    for count in sorted(counts.values()):
        if count * rest >= left:
            return -(-left // rest)
        left, rest = left - count, rest - 1
    return max(counts.values(), default=1)


def _added(counts: Counter[int], ranks: Ranks) -> Counter[int]:
    """Over all processes."""
    total: Counter[int] = Counter()
    for pairs in ranks.told(list(counts.items())):
        total.update(dict(pairs))
    return total


def _counted(groups: Iterable[Tensor]) -> Counter[int]:
    total: Counter[int] = Counter()
    for numbers in groups:
        total.update(numbers.tolist())
    return total


def _look_up(weight: dict[int, float], strata: NDArray[np.int64]) -> Tensor:
    return torch.tensor([weight[int(group)] for group in strata], dtype=torch.float64)


def _pruned(held: list[_Part], size_of: Callable[[int], int]) -> list[_Part]:
    """Only the rows with the smallest keys of each stratum."""
    keys, strata = _joined_keys(held)
    return _chosen(held, _smallest_of_each(keys, strata, size_of))


def _pruned_by_all(held: list[_Part], size_of: Callable[[int], int], ranks: Ranks) -> list[_Part]:
    """Only those with the smallest keys among the rows of all processes."""
    mine, strata = _joined_keys(held)
    keys = ranks.rows(torch.from_numpy(mine.view(np.int64))).numpy().view(np.uint64)
    chosen = _smallest_of_each(keys, ranks.rows(torch.from_numpy(strata)).numpy(), size_of)
    return _chosen(held, np.isin(mine, keys[chosen]))


def _joined_keys(held: list[_Part]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    return np.concatenate([part.keys for part in held]), np.concatenate([part.strata for part in held])


def _smallest_of_each(
    keys: NDArray[np.uint64], strata: NDArray[np.int64], size_of: Callable[[int], int]
) -> NDArray[np.bool_]:
    chosen = np.zeros(len(keys), dtype=bool)
    order = np.argsort(strata, kind="stable")
    numbers, starts = np.unique(strata[order], return_index=True)
    for number, mine in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        chosen[mine] = smallest(keys[mine], size_of(number))
    return chosen


def _chosen(held: list[_Part], chosen: NDArray[np.bool_]) -> list[_Part]:
    pruned, start = [], 0
    for part in held:
        mask = chosen[start : start + len(part.keys)]
        start += len(part.keys)
        if mask.all():
            pruned.append(part)
        elif mask.any():
            rows = torch.from_numpy(mask.nonzero()[0])
            pruned.append(_Part(part.keys[mask], part.strata[mask], part.batch.rows(rows)))
    return pruned


def _bytes_of(held: list[_Part]) -> int:
    tensors = [t for part in held for t in tensors_in((part.batch.args, part.batch.kwargs, part.batch.targets))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _check_size(num_rows: int, needed: int, most_bytes: int) -> None:
    if needed > most_bytes:
        raise MemoryBudgetError(
            f"Holding a subsample of {num_rows} rows takes {human_bytes(needed)}, but memory_budget leaves "
            f"{human_bytes(most_bytes)} for it. Raise the budget or take fewer rows."
        )


def _joined(batches: list[Batch], most_rows: int = 256) -> list[Batch]:
    """Merge small neighbouring batches of equal form: a few rows of each are slow to run one by one."""
    joined: list[Batch] = []
    for batch in batches:
        batch = replace(batch, picked_from=(batch.index, batch.index))
        last = joined[-1] if joined else None
        if last is not None and last.size + batch.size <= most_rows and _form(last) == _form(batch):
            joined[-1] = _followed_by(last, batch)
        else:
            joined.append(batch)
    return joined


def _followed_by(first: Batch, second: Batch) -> Batch:
    more = iter(tensors_in((second.args, second.kwargs, second.targets, second.row_weights)))

    def extended(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, next(more)])

    parts = map_tensors((first.args, first.kwargs, first.targets, first.row_weights), extended)
    args, kwargs, targets, row_weights = parts
    size, drawn = first.size + second.size, ((first.picked_from or (0, 0))[0], second.index)
    whole = replace(first, args=args, kwargs=kwargs, targets=targets, row_weights=row_weights, size=size)
    return replace(whole, picked_from=drawn)


def _form(batch: Batch) -> object:
    """What must agree for two batches to be one: shapes but for the rows; None where an input is not per example."""
    tensors = tensors_in((batch.args, batch.kwargs, batch.targets))
    if not all(batch.per_example):
        return object()
    forms = [(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors]
    return (str(map_tensors((batch.args, batch.kwargs), lambda _: "tensor")), batch.targets is None, forms)
