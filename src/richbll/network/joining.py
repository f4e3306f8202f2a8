"""Small batches put together, so that a pass costs what its examples cost and not what its batches do."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from richbll.network.batches import Batch, map_tensors, tensors_in

_PLAIN = (bool, int, float, str, type(None))  # what else may be in a batch, and is the same in all of them


def joined_batches(batches: Iterable[Batch], most_rows: Callable[[], int]) -> Iterator[Batch]:
    """The same rows in the same order, in batches of up to so many rows. Only batches that are alike are joined."""
    waiting: list[Batch] = []
    outline: Any = None
    for batch in batches:
        if 2 * batch.size > most_rows() and not waiting:
            yield batch
            continue
        found = _outline(batch)
        rows = sum(other.size for other in waiting) + batch.size
        if waiting and (rows > most_rows() or found is None or found != outline):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch.copied())
        outline = found
    if waiting:
        yield _joined(waiting)


def _outline(batch: Batch) -> Any:
    """All but the values and the number of rows; None of a batch that stays alone."""
    if not all(batch.per_example):
        return None
    try:
        return [_outline_of(part) for part in (batch.args, batch.kwargs, batch.targets, batch.row_weights)]
    except TypeError:
        return None


def _outline_of(value: Any) -> Any:
    if isinstance(value, Tensor) and value.layout == torch.strided:
        return type(value).__name__, value.dtype, value.device, value.shape[1:]
    if isinstance(value, Mapping):
        return "mapping", {key: _outline_of(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value).__name__, [_outline_of(item) for item in value]
    if isinstance(value, _PLAIN):
        return type(value).__name__, value
    raise TypeError(f"nothing is known about joining {type(value).__name__}")


def _joined(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    columns = zip(*(tensors_in((batch.args, batch.kwargs)) for batch in batches), strict=True)
    wholes = iter([torch.cat(column) for column in columns])
    args, kwargs = map_tensors((first.args, first.kwargs), lambda _: next(wholes))
    targets, weights = (
        None if parts[0] is None else torch.cat([part for part in parts if part is not None])
        for parts in ([batch.targets for batch in batches], [batch.row_weights for batch in batches])
    )
    return replace(
        first,
        args=args,
        kwargs=kwargs,
        targets=targets,
        size=sum(batch.size for batch in batches),
        row_weights=weights,
        parts=tuple(batches),
    )
