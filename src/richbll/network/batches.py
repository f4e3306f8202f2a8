"""Batches of every form, and streams of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from tqdm import tqdm

from richbll.errors import DataError, ShapeError

_LABELS = ("labels", "label")
_ROWS_OF_A_TENSOR = 256  # rows at a time when whole tensors are given instead of batches


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Apply `change` to every tensor inside tuples, lists and mappings; the rest stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map_tensors(item, change) for item in value)
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors inside tuples, lists and mappings, in order."""
    found: list[Tensor] = []
    map_tensors(value, found.append)
    return found


@dataclass(frozen=True)
class Batch:
    """Inputs of the model by position and by name, and targets where there are any."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Tensor | None
    size: int
    index: int = 0  # number of this batch in its stream
    start: int = 0  # number of its first row in the stream
    row_weights: Tensor | None = None  # (n,) for rows that do not all stand for equally many examples

    @property
    def where(self) -> str:
        """Its address, for messages."""
        return f"batch {self.index} (rows {self.start} to {self.start + self.size - 1})"

    def rows(self, rows: Tensor | slice) -> "Batch":
        """Some of the examples. Tensors whose first dimension is not the batch are passed on whole."""

        def pick(tensor: Tensor) -> Tensor:
            return tensor[rows] if self.is_per_example(tensor) else tensor

        size = len(range(*rows.indices(self.size))) if isinstance(rows, slice) else len(rows)
        args, kwargs = map_tensors((self.args, self.kwargs), pick)
        targets = None if self.targets is None else self.targets[rows]
        row_weights = None if self.row_weights is None else self.row_weights[rows]
        return replace(self, args=args, kwargs=kwargs, targets=targets, size=size, row_weights=row_weights)

    def is_per_example(self, tensor: Tensor) -> bool:
        """Whether the first dimension of this input is the batch."""
        return tensor.ndim > 0 and tensor.shape[0] == self.size

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        if all(tensor.device == device for tensor in tensors_in((self.args, self.kwargs, self.targets))):
            return self
        args, kwargs = map_tensors((self.args, self.kwargs), lambda tensor: tensor.to(device))
        targets = None if self.targets is None else self.targets.to(device)
        return replace(self, args=args, kwargs=kwargs, targets=targets)

    def weighted(self, weights: Tensor) -> Tensor:
        """Weights (n, g), each times how many examples its row stands for."""
        return weights if self.row_weights is None else weights * self.row_weights.to(weights).unsqueeze(1)

    def targets_like(self, f: Tensor) -> Tensor | None:
        """Targets in the shape (n, c) of the outputs."""
        if self.targets is None:
            return None
        if self.targets.numel() != f.numel() or len(self.targets) != len(f):
            raise ShapeError(
                f"Targets of {self.where} have shape {tuple(self.targets.shape)}, but the model's output has "
                f"{f.shape[1]} value(s) for each of {f.shape[0]} examples."
            )
        return self.targets.reshape(f.shape)


def inputs_of(x: Any) -> Batch:
    """Inputs alone, as `predict` takes them: a tensor, a tuple of tensors, or a mapping by keyword."""
    if isinstance(x, Mapping):
        args, kwargs = (), {str(key): item for key, item in x.items() if key not in _LABELS}
    else:
        args, kwargs = (tuple(x) if isinstance(x, tuple | list) else (x,)), {}
    tensors = [tensor for tensor in tensors_in((args, kwargs)) if tensor.ndim > 0]
    if not tensors:
        raise DataError(
            f"Inputs of type {type(x).__name__} hold no tensor with a batch dimension. "
            "Give a tensor, a tuple of tensors or a mapping of tensors (NumPy arrays: torch.from_numpy)."
        )
    return Batch(args=args, kwargs=kwargs, targets=None, size=tensors[0].shape[0])


def unpack(raw: Any) -> Batch:
    """One element of a loader: `(x, y)`, `x` alone, or a mapping with or without labels."""
    if isinstance(raw, tuple | list):
        if len(raw) == 1:
            return inputs_of(raw[0])
        if len(raw) != 2 or not (raw[1] is None or isinstance(raw[1], Tensor)):
            raise DataError(
                f"A batch of {len(raw)} parts cannot be told apart into inputs and targets. "
                "Yield (x, y), or ((x1, x2, …), y) for several inputs, or a mapping with 'labels'."
            )
        batch, targets = inputs_of(raw[0]), raw[1]
    else:
        batch = inputs_of(raw)
        given = [raw[key] for key in _LABELS if key in raw] if isinstance(raw, Mapping) else []
        targets = given[0] if given and isinstance(given[0], Tensor) else None
    if targets is not None and (targets.ndim == 0 or len(targets) != batch.size):
        raise ShapeError(f"A batch has {batch.size} inputs but targets of shape {tuple(targets.shape)}.")
    return replace(batch, targets=targets)


class Stream:
    """The user's data as batches on one device: counted, without empty ones, and re-read where possible."""

    num_data: int | None = None  # every row stands for itself

    def __init__(self, data: Any, device: torch.device, progress: bool | None = None) -> None:
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise DataError(f"{type(data).__name__} yields single examples. Wrap it in a torch.utils.data.DataLoader.")
        is_pair = isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
        if isinstance(data, Tensor) or is_pair:
            data = _chunks(data)
        try:
            iterator = iter(data)
        except TypeError as error:
            raise DataError(
                f"{type(data).__name__} is not an iterable of batches. Give a DataLoader, a list of (x, y) "
                "batches, or one pair of tensors (x, y)."
            ) from error
        self.can_be_reread = iterator is not data
        self._data = data
        self._device = device
        self._progress = progress
        self._first: list[Any] = []
        self._once = None if self.can_be_reread else iterator

    def peek(self) -> Batch:
        """The first batch that is not empty. A stream that can be read only once loses nothing."""
        source = iter(self._data) if self._once is None else self._once
        for raw in source:
            if self._once is not None:
                self._first.append(raw)
            batch = unpack(raw)
            if batch.size > 0:
                return batch.to(self._device)
        raise DataError("The loader yielded no examples: nothing can be fitted.")

    def batches(self, task: str) -> Iterator[Batch]:
        """All batches, numbered, with a progress bar named after the task."""
        source = iter(self._data) if self._once is None else chain(self._first, self._once)
        start = 0
        disable = None if self._progress is None else not self._progress
        for index, raw in enumerate(tqdm(source, desc=task, total=_length(self._data), disable=disable, leave=False)):
            batch = replace(unpack(raw), index=index, start=start)
            if batch.size > 0:
                start += batch.size
                yield batch.to(self._device)
        if start == 0:
            raise DataError("The loader yielded no examples: nothing can be fitted.")


def _length(data: Any) -> int | None:
    """How many batches, where that is known; a loader over an IterableDataset raises when asked."""
    try:
        return len(data)
    except TypeError:
        return None


def _chunks(data: Tensor | tuple[Tensor, ...]) -> Sequence[Any]:
    parts = (data,) if isinstance(data, Tensor) else data
    if len({len(part) for part in parts}) != 1:
        raise ShapeError(f"Inputs and targets have {' and '.join(str(len(part)) for part in parts)} rows.")
    return list(zip(*(torch.split(part, _ROWS_OF_A_TENSOR) for part in parts), strict=True))
