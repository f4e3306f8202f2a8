"""Batches of every form, and streams of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from tqdm import tqdm

from richbll.errors import DataChangedError, DataError, ShapeError
from richbll.network.ranks import Alone, Ranks
from richbll.network.shard import shard_of

_LABELS = ("labels", "label")
_ROWS_OF_A_TENSOR = 256  # rows at a time when whole tensors are given instead of batches


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Apply `change` to every tensor inside tuples, lists and mappings; the rest stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        parts = [map_tensors(item, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()} if value else {}
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
    per_example: tuple[bool, ...]  # which of the input tensors have the batch as first dimension; the others are whole
    index: int = 0  # number of this batch in its stream
    start: int = 0  # number of its first row in the stream
    row_weights: Tensor | None = None  # (n,) for rows that do not all stand for equally many examples
    parts: tuple["Batch", ...] = ()  # the batches that it was joined from
    picked_from: tuple[int, int] | None = None  # first and last number of the batches that its rows were drawn from

    @property
    def where(self) -> str:
        """Its address, for messages."""
        if self.picked_from is not None:
            first, last = self.picked_from[0], (self.parts or (self,))[-1].picked_from or self.picked_from
            return f"the rows drawn from batch {first}" + (f" to {last[1]}" if last[1] > first else "")
        number = f"batches {self.index} to {self.parts[-1].index}" if self.parts else f"batch {self.index}"
        return f"{number} (rows {self.start} to {self.start + self.size - 1})"

    @property
    def device(self) -> torch.device:
        """Where its inputs are."""
        return tensors_in((self.args, self.kwargs))[0].device

    def rows(self, rows: Tensor | slice) -> "Batch":
        """Some of the examples. Tensors whose first dimension is not the batch are passed on whole."""
        is_mine = iter(self.per_example)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[rows] if next(is_mine) else tensor

        size = len(range(*rows.indices(self.size))) if isinstance(rows, slice) else len(rows)
        args, kwargs = map_tensors((self.args, self.kwargs), pick)
        targets = None if self.targets is None else self.targets[rows]
        row_weights = None if self.row_weights is None else self.row_weights[rows]
        return replace(self, args=args, kwargs=kwargs, targets=targets, size=size, row_weights=row_weights)

    def copied(self) -> "Batch":
        """With tensors of its own: a loader may fill the same memory again while a batch is kept."""
        args, kwargs = map_tensors((self.args, self.kwargs), torch.clone)
        return replace(self, args=args, kwargs=kwargs, targets=map_tensors(self.targets, torch.clone))

    def ready(self, device: torch.device) -> "Batch":
        """On a device and without a graph, as a fit reads it."""
        tensors = tensors_in((self.args, self.kwargs, self.targets))
        if all(t.device == device and not (t.requires_grad or t.is_inference()) for t in tensors):
            return self
        return self.detached().to(device)

    def detached(self) -> "Batch":
        """Without a graph: a fit asks for gradients by weights, never by its inputs."""
        args, kwargs = map_tensors((self.args, self.kwargs), torch.Tensor.detach)
        return replace(self, args=args, kwargs=kwargs, targets=map_tensors(self.targets, torch.Tensor.detach))

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device, of tensors that autograd may use."""
        tensors = tensors_in((self.args, self.kwargs, self.targets))
        if all(tensor.device == device and not tensor.is_inference() for tensor in tensors):
            return self
        args, kwargs = map_tensors((self.args, self.kwargs), lambda tensor: _usable(tensor.to(device)))
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
        return self.targets.reshape(f.shape).to(f.device)


def _usable(tensor: Tensor) -> Tensor:
    """Tensors made under inference_mode cannot be saved for a gradient; their copies can."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def inputs_of(x: Any, size: int | None = None) -> Batch:
    """Inputs alone, as `predict` takes them: a tensor, a tuple of tensors, or a mapping by keyword.

    The batch is the first dimension of the targets where these are known, else of the first tensor.
    """
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
    size = tensors[0].shape[0] if size is None else size
    per_example = tuple(tensor.ndim > 0 and tensor.shape[0] == size for tensor in tensors_in((args, kwargs)))
    if not any(per_example):
        raise ShapeError(f"A batch has {size} targets but inputs of shape {tuple(tensors[0].shape)}.")
    return Batch(args=args, kwargs=kwargs, targets=None, size=size, per_example=per_example)


def unpack(raw: Any) -> Batch:
    """One element of a loader: `(x, y)`, `x` alone, or a mapping with or without labels."""
    if isinstance(raw, tuple | list):
        if len(raw) == 1:
            return inputs_of(raw[0])
        if len(raw) != 2:
            raise DataError(
                f"A batch of {len(raw)} parts cannot be told apart into inputs and targets. "
                "Yield (x, y), or ((x1, x2, …), y) for several inputs, or a mapping with 'labels'."
            )
        inputs, targets = raw
    else:
        given = [raw[key] for key in _LABELS if key in raw] if isinstance(raw, Mapping) else []
        inputs, targets = raw, given[0] if given else None
    if targets is None:
        return inputs_of(inputs)
    if not isinstance(targets, Tensor) or targets.ndim == 0:
        what = f"shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else f"type {type(targets).__name__}"
        raise ShapeError(f"A batch has targets of {what}: they must be a tensor with one row per example.")
    return replace(inputs_of(inputs, len(targets)), targets=targets)


class Stream:
    """The user's data as batches on one device: counted, without empty ones, and re-read where possible."""

    num_data: int | None = None  # every row stands for itself
    keeps_state = False

    def __init__(
        self, data: Any, device: torch.device, progress: bool | None = None, ranks: Ranks | None = None
    ) -> None:
        self.ranks: Ranks = Alone() if ranks is None else ranks
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise DataError(f"{type(data).__name__} yields single examples. Wrap it in a torch.utils.data.DataLoader.")
        if isinstance(data, Mapping):
            raise DataError("A mapping is one batch, not an iterable of batches: put it into a list.")
        two = isinstance(data, list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
        if two and data[0].ndim != data[1].ndim:
            raise DataError("A list of two tensors is two batches of inputs; for inputs and targets give (x, y).")
        if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], Mapping | tuple | list):
            raise DataError("A tuple of inputs and targets is one batch: put it into a list, [(inputs, targets)].")
        is_pair = isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
        if isinstance(data, Tensor) or is_pair:
            data = _chunks(data)
        try:
            self._next = iter(data)  # the first reading goes on where `peek` stopped
        except TypeError as error:
            raise DataError(
                f"{type(data).__name__} is not an iterable of batches. Give a DataLoader, a list of (x, y) "
                "batches, or one pair of tensors (x, y)."
            ) from error
        self.can_be_reread = self._next is not data
        self._data = data
        self._shard = shard_of(data)
        self._device = device
        self._progress = progress
        self._seen: list[Any] = []
        self._first: Batch | None = None
        self._num_readings = 0

    def peek(self) -> Batch:
        """The first batch that is not empty. Nothing is lost: the first reading begins with it."""
        if self._first is not None:
            return self._first
        for raw in self._next:
            self._seen.append(raw)
            batch = self._counted(unpack(raw))
            if batch.size > 0:
                self._first = batch.ready(self._device)
                return self._first
        raise DataError("The loader yielded no examples: nothing can be fitted.")

    @property
    def num_rows(self) -> int | None:
        """At most so many, where that can be told; batches of unknown sizes count as large as the first."""
        if type(self._data) in (list, tuple):
            return sum(_size(raw) for raw in self._data)
        length, most = _length(self._data), getattr(self._data, "batch_size", None)
        return None if length is None else length * max(self.peek().size, most if isinstance(most, int) else 0)

    def numbers(self, batch: Batch) -> range:
        """Of its rows, among those of all processes; without shuffling the same for any number of processes."""
        first, step = (self.ranks.rank << 40, 1) if self._shard is None else (self._shard.first, self._shard.step)
        first += batch.start * step
        return range(first, first + batch.size * step, step)

    def _counted(self, batch: Batch) -> Batch:
        """Without rows that a DistributedSampler repeats."""
        count = batch.size if self._shard is None else self._shard.count(batch.start, batch.size)
        return batch if count == batch.size else batch.rows(slice(0, count))

    def batches(self, task: str, state: dict[str, Tensor] | None = None) -> Iterator[Batch]:
        """All batches, numbered, with a progress bar named after the task."""
        source = chain(self._seen, self._next) if self._num_readings == 0 else iter(self._data)
        self._num_readings += 1
        self._seen = []
        start = num_read = 0  # rows that repeat others come last and are read, but not counted
        disable = self.ranks.rank > 0 or None if self._progress is None else not self._progress
        for index, raw in enumerate(tqdm(source, desc=task, total=_length(self._data), disable=disable, leave=False)):
            self.ranks.heed()
            whole = replace(unpack(raw), index=index, start=num_read)
            num_read += whole.size
            batch = self._counted(whole)
            if batch.size > 0:
                start += batch.size
                yield batch.ready(self._device)
        if self._shard is not None:
            self._shard.check_end(num_read)
        if start == 0 and self._num_readings > 1:
            raise DataChangedError(
                "The data could be read only once: its iterator is used up, although it looks like one that starts "
                'anew. Give a list or a DataLoader, a subsample of a number of rows, or solver="cross".'
            )
        if start == 0:
            raise DataError("The loader yielded no examples: nothing can be fitted.")


def _size(raw: Any) -> int:
    """The number of rows of a batch."""
    pair = isinstance(raw, tuple) and len(raw) == 2 and isinstance(raw[0], Tensor) and isinstance(raw[1], Tensor)
    return len(raw[1]) if pair and raw[1].ndim else unpack(raw).size


def _length(data: Any) -> int | None:
    """How many batches, where that is known; a loader over an IterableDataset raises when asked."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def _chunks(data: Tensor | tuple[Tensor, ...]) -> Sequence[Any]:
    parts = (data,) if isinstance(data, Tensor) else data
    if len({len(part) for part in parts}) != 1:
        raise ShapeError(f"Inputs and targets have {' and '.join(str(len(part)) for part in parts)} rows.")
    return list(zip(*(torch.split(part, _ROWS_OF_A_TENSOR) for part in parts), strict=True))
