"""Reading the data with several processes: each its shard, and what they find is added up.

`fit` does so by itself wherever `torch.distributed` is initialised with more than one process, as under torchrun.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from richbll.errors import DistributedError, OptionError
from richbll.network.ranks import Alone, Block, PerRank, Ranks

__all__ = ["Alone", "ProcessGroup", "current_ranks", "using"]

_SMALL = 2**18  # tensors of at most so many elements are sent as one
_CHUNK = 2**24  # elements at a time, so that what a backend copies stays small
_LOOK = 0.5  # seconds between two looks for errors of others
_MOST_DIMS = 8
_SHORT = 2**14  # bytes: so much of what is told goes without its length being told before

_chosen: ContextVar[Ranks | None] = ContextVar("ranks that fit reads with", default=None)


def current_ranks() -> Ranks:
    """Those of `using`, else the default process group where there is one of several processes.

    Examples:
        >>> current_ranks().size
        1
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Alone()
    return ProcessGroup()


@contextmanager
def using(ranks: Ranks) -> Iterator[None]:
    """Inside, `fit` reads with these processes: `Alone()`, or `ProcessGroup(group)` of some of them.

    Examples:
        >>> import richbll
        >>> with richbll.distributed.using(richbll.distributed.Alone()):
        ...     uq = richbll.RichBLL(nn.Linear(2, 1), noise_variance=0.1).fit(torch.randn(64, 2))
    """
    token = _chosen.set(ranks)
    try:
        yield
    finally:
        _chosen.reset(token)


def alone_only(ranks: Ranks, transform: bool, subsample: bool) -> None:
    """Refuse transform="per_class" and subsample="auto", which need all of the data in one process."""
    asked = {'transform="per_class"': transform, 'subsample="auto"': subsample}
    for option in (option for option, is_asked in asked.items() if is_asked and ranks.size > 1):
        raise OptionError(
            f"{option} needs all of the data in one process, but {ranks.size} read it. Leave the option out, or fit in "
            "one process: with richbll.distributed.using(richbll.distributed.Alone())."
        )


def _in_words(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # of its own text
        return type(error).__name__


class _HeardError(DistributedError):
    """Another process has failed; which one, and why, is told at the end of the block."""


class ProcessGroup:
    """The processes of a `torch.distributed` group, by default of all. Calls come in the same order in all of them."""

    def __init__(self, group: Any = None) -> None:
        self._group: Any = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        if self.rank < 0:
            raise DistributedError("This process is no member of the group it was to read with.")
        pairs = (pair.split(":") for pair in dist.get_backend_config(self._group).split(","))
        self._backends = {device: backend for device, backend in pairs}
        get_store = getattr(self._group, "get_group_store", None)
        self._store = None if get_store is None else get_store()
        self._task, self._token, self._block, self._next_look = "the start", "", 0, 0.0
        self._rooms = [torch.empty(0), torch.empty(0)]

    # ------------------------------------------------------------------ failing together

    @contextmanager
    def together(self, task: str) -> Iterator[Block]:
        """A block in which this process works by itself: an error in one process is an error in all."""
        self._task = task
        self._block += 1
        block, own, text = Block(), None, ""
        try:
            yield block
            json.dumps(block.value)  # what cannot be said is an error of this process, before the others wait for it
        except Exception as error:
            own, text = error, "" if isinstance(error, _HeardError) else _in_words(error)
            self._tell()
        try:
            said = self.told([text, None if own else block.value, self._token or secrets.token_hex(8)])
        except DistributedError:
            if own is None:
                raise
            raise own from None
        if own is not None and text:
            raise own
        failed = [f"rank {rank} failed at '{task}' with {text}" for rank, (text, _, _) in enumerate(said) if text]
        if failed:
            raise DistributedError(f"Rank {self.rank} of {self.size} stops, because {'; '.join(failed)}")
        block.said, self._token = [value for _, value, _ in said], said[0][2]

    def heed(self) -> None:
        """Raises when another process has failed in this block. Looks now and then, and in the first block never."""
        if self._store is None or not self._token or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        with self._speaking("look for errors of the others"):
            failed = self._store.check([self._key])
        if failed:
            raise _HeardError("Another process has failed.")

    def _tell(self) -> None:
        if self._store is not None and self._token:
            with suppress(RuntimeError):  # it is told once more at the end of the block
                self._store.set(self._key, "failed")

    @property
    def _key(self) -> str:
        return f"richbll/{self._token}/{self._block}"

    @contextmanager
    def _speaking(self, task: str) -> Iterator[None]:
        """Errors of the backend in words."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise DistributedError(
                f"Rank {self.rank} of {self.size} could not {task} ('{self._task}'): {reason[0]}. Another process has "
                "died, is stuck, or did not call fit, which all of them must do: look at what the others say. Where "
                "one only reads much longer than the others, give init_process_group a longer timeout. To fit in one "
                "process alone: with richbll.distributed.using(richbll.distributed.Alone())."
            ) from error

    # ------------------------------------------------------------------ collectives

    def add(self, *tensors: Tensor) -> None:
        """Sum over all processes, in place."""
        self._in_place(tensors, lambda part: dist.all_reduce(part, group=self._group))

    def _in_place(self, tensors: Sequence[Tensor], collective: Callable[[Tensor], Any]) -> None:
        """A collective on some tensors: small ones of one type are sent as one."""
        present = [tensor for tensor in tensors if tensor.numel() > 0]
        for dtype in dict.fromkeys(tensor.dtype for tensor in present):
            alike = [tensor for tensor in present if tensor.dtype == dtype]
            small = [tensor for tensor in alike if tensor.numel() <= _SMALL]
            for tensor in (tensor for tensor in alike if tensor.numel() > _SMALL):
                self._in_chunks(tensor, collective)
            if small:
                flat = torch.cat([tensor.flatten() for tensor in small])
                self._in_chunks(flat, collective)
                for tensor, part in zip(small, torch.split(flat, [t.numel() for t in small]), strict=True):
                    tensor.copy_(part.view(tensor.shape))

    def share(self, pieces: Tensor, sizes: Sequence[int]) -> Callable[[], Tensor]:
        """Begin to add up a flat tensor with one piece for each process; see `Ranks.share`."""
        parts = torch.split(pieces.to(self._device_for(pieces)), list(sizes))
        mine, others = parts[self.rank], [rank for rank in range(self.size) if rank != self.rank]
        found = torch.split(self._room_for(len(others) * len(mine), mine), len(mine)) if len(mine) else ()
        given = {rank: [parts[rank]] for rank in others}
        wait = self.swap(given, {rank: [part] for rank, part in zip(others, found, strict=False)})

        def finished() -> Tensor:
            wait()
            for part in found:
                mine.add_(part)
            return mine.to(pieces.device)

        return finished

    def swap(self, given: PerRank, wanted: PerRank) -> Callable[[], None]:
        """Begin to send some processes the tensors given for them, and to fill those wanted from them."""
        sent = [(rank, tensor.to(self._device_for(tensor))) for rank, some in given.items() for tensor in some]
        places = [(rank, tensor) for rank, some in wanted.items() for tensor in some]
        filled = [(rank, self._reachable(tensor)) for rank, tensor in places]
        with self._speaking("exchange data with the others"):
            sends = [self._point_to_point(dist.isend, tensor, rank) for rank, tensor in sent if len(tensor)]
            receives = [self._point_to_point(dist.irecv, tensor, rank) for rank, tensor in filled if len(tensor)]
            works = dist.batch_isend_irecv(sends + receives) if sends or receives else []

        def wait() -> None:
            with self._speaking("exchange data with the others"):
                for work in works:
                    work.wait()
            for (_, place), (_, tensor) in zip(places, filled, strict=True):
                if tensor is not place:
                    place.copy_(tensor)

        return wait

    def _reachable(self, tensor: Tensor) -> Tensor:
        """Itself, or where the backend does not reach it a place for it where it does."""
        device = self._device_for(tensor)
        return tensor if device == tensor.device else torch.empty_like(tensor, device=device)

    def _point_to_point(self, direction: Any, part: Tensor, rank: int) -> Any:
        return dist.P2POp(direction, part, dist.get_global_rank(self._group, rank), self._group)

    def _room_for(self, count: int, like: Tensor) -> Tensor:
        """So many elements of one of two rooms, in turn: fresh memory would cost as much as the exchange."""
        self._rooms.reverse()
        room = self._rooms[0]
        if room.dtype != like.dtype or room.device != like.device or len(room) < count:
            self._rooms[0] = like.new_empty(count)
        return self._rooms[0][:count]

    def same(self, *tensors: Tensor) -> None:
        """The values of the first process in all of them, in place."""
        self._in_place(tensors, lambda part: self._broadcast(part, 0))

    def rows(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The tensors of all processes, joined along a dimension in which their sizes may differ."""
        parts = self._parts(tensor)
        dim %= tensor.ndim
        shapes = {(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts}
        if len(shapes) > 1:
            found = ", ".join(str(tuple(part.shape)) for part in parts)
            raise DistributedError(f"The processes have read shapes that do not fit together: {found} ('{self._task}')")
        return torch.cat(parts, dim=dim)

    def told(self, value: Any) -> list[Any]:
        """What every process says, the first one first: any value that JSON has."""
        text = json.dumps(value).encode()
        short = text if len(text) <= _SHORT else b""
        sent = bytearray(len(text).to_bytes(8, "little") + short.ljust(_SHORT))
        found = [part.numpy().tobytes() for part in self._gathered(torch.frombuffer(sent, dtype=torch.uint8))]
        lengths = [int.from_bytes(part[:8], "little") for part in found]
        if max(lengths) <= _SHORT:
            texts = [part[8 : 8 + length] for part, length in zip(found, lengths, strict=True)]
        else:
            whole = self._parts(torch.frombuffer(bytearray(text), dtype=torch.uint8))
            texts = [part.numpy().tobytes() for part in whole]
        return [json.loads(text) for text in texts]

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, whatever their shapes."""
        shapes = torch.zeros(self.size, 1 + _MOST_DIMS, dtype=torch.int64)
        shapes[self.rank, : 1 + tensor.ndim] = torch.tensor([tensor.ndim, *tensor.shape])
        self.add(shapes)
        parts = [tensor.new_empty(sizes[:ndim]) for ndim, *sizes in shapes.tolist()]
        parts[self.rank] = tensor.contiguous()
        as_bytes = [part.flatten().view(torch.uint8) for part in parts]  # whatever the type, a backend can send it
        longest = max(map(len, as_bytes))
        if longest <= _SMALL:
            self._gather(as_bytes, longest)
        else:
            for rank, part in enumerate(as_bytes):
                self._in_chunks(part, partial(self._broadcast, rank=rank))
        return parts

    def _gather(self, parts: list[Tensor], longest: int) -> None:
        """Fill the others' parts, each sent as long as the longest."""
        sent = parts[self.rank].new_zeros(longest)
        sent[: len(parts[self.rank])] = parts[self.rank]
        for part, whole in zip(parts, self._gathered(sent), strict=True):
            part.copy_(whole[: len(part)])

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of one shape."""
        sent = tensor.to(self._device_for(tensor))
        found = [torch.empty_like(sent) for _ in range(self.size)]
        with self._speaking("exchange data with the others"):
            dist.all_gather(found, sent, group=self._group)
        return [part.to(tensor.device) for part in found]

    def _broadcast(self, part: Tensor, rank: int) -> None:
        dist.broadcast(part, dist.get_global_rank(self._group, rank), group=self._group)

    def _in_chunks(self, tensor: Tensor, collective: Callable[[Tensor], Any]) -> None:
        """A collective on a tensor, in chunks, by way of a device that the backend reaches."""
        if tensor.numel() == 0:
            return
        sent = tensor.to(self._device_for(tensor)).contiguous()
        with self._speaking("exchange data with the others"):
            for part in torch.split(sent.view(-1), _CHUNK):
                collective(part)
        if sent is not tensor:
            tensor.copy_(sent)

    def _device_for(self, tensor: Tensor) -> torch.device:
        """Its own where the backend takes it from there; gloo takes tensors from the CPU."""
        backend = self._backends.get(tensor.device.type)
        if backend is not None and (backend != "gloo" or tensor.device.type == "cpu"):
            return tensor.device
        return torch.device("cpu" if "cpu" in self._backends else next(iter(self._backends)))
