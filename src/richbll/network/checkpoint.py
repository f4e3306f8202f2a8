"""A fit that can be killed: what its passes have added up is written every few batches, and taken up again to the bit.

The file holds the state of every pass that was begun: of the pass under way as it was after the last counted batch, of
earlier ones as their reader left it. Beside them stands a chain of hashes, one per batch of the first pass: every later
reading, in this process or in the next, must give the same batches in the same order.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from richbll import files
from richbll.errors import CheckpointError, DataChangedError
from richbll.network.batches import Batch, tensors_in
from richbll.network.fingerprint import DIGEST_BYTES, add_tensor, batch_digest, new_digest
from richbll.network.ranks import Ranks

FORMAT = 1
_KEY = "richbll-checkpoint"
_DIGESTS = "digests"
_ADVICE = "The file is as it was: give what the fit was begun with, or delete the file to start anew."

State = dict[str, Tensor]


class _Source(Protocol):
    can_be_reread: bool
    num_data: int | None
    ranks: Ranks

    @property
    def num_rows(self) -> int | None: ...

    def peek(self) -> Batch: ...

    def batches(self, task: str, state: State | None = None) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class _Kept:
    """What a file says of a pass."""

    task: str
    num_batches: int  # that are in the state
    is_complete: bool
    keys: dict[str, str]  # names of the state → names in the file; two may share a tensor


@dataclass
class _Pass:
    """One reading of all batches, in this process."""

    task: str
    state: State  # what its reader adds to, by reference
    num_batches: int = 0
    is_complete: bool = False


class CheckpointedSource:
    """Stands in for a source, and keeps in a file what is added up from it."""

    keeps_state = True

    def __init__(self, source: _Source, path: str | os.PathLike[str], every: int, fingerprint: dict[str, str]) -> None:
        self._source, self._path, self._every = source, Path(path), every
        self._fingerprint = fingerprint | {"examples that the rows stand for": str(source.num_data)}
        self.can_be_reread = source.can_be_reread
        self.num_data = source.num_data
        self.ranks = source.ranks
        self._passes: list[_Pass] = []
        self._kept: list[_Kept] = []  # begun before this process
        self._digests: list[bytes] = []  # of the batches of the first pass, as far as it is known
        files.check_place(self._path, CheckpointError)
        files.remove_leftovers(self._path)
        if self._path.exists():
            self._kept, self._digests = _opened(self._path, self._fingerprint)
        self._all_known = bool(self._kept) and self._kept[0].is_complete

    @property
    def num_rows(self) -> int | None:
        """As the source."""
        return self._source.num_rows

    def peek(self) -> Batch:
        """The first batch."""
        return self._source.peek()

    def batches(self, task: str, state: State | None = None) -> Iterator[Batch]:
        """The batches that are not in the state yet; before the first of them the state is put back.

        Of the pass that was under way all batches are read, to see that they are the same; earlier ones are not read.
        """
        if state is None:
            yield from self._source.batches(task)
            return
        number, reading = len(self._passes), _Pass(task, state)
        self._passes.append(reading)
        kept = self._kept[number] if number < len(self._kept) else None
        if kept is not None and kept.task != task:
            raise CheckpointError(
                f"{self._path} was written by a fit that read '{kept.task}' where this one reads '{task}': the data or "
                f"the solver is of another kind. {_ADVICE}"
            )
        if kept is not None and number < len(self._kept) - 1:
            self._restore(reading, kept)
        else:
            yield from self._rest(reading, kept)

    def _rest(self, reading: _Pass, kept: _Kept | None) -> Iterator[Batch]:
        """Reads all batches, skips those that are counted already, and writes the state every so many."""
        count, digest = 0, b""
        num_done = 0 if kept is None else kept.num_batches
        for batch in self._source.batches(reading.task):
            digest = batch_digest(digest, batch)
            self._check(batch, count, digest)
            if count == num_done and kept is not None:
                self._restore(reading, kept)
            count += 1
            if count <= num_done:
                continue
            yield batch
            reading.num_batches = count
            if count % self._every == 0:
                self._write()
        if count < len(self._digests):
            raise DataChangedError(
                f"The data ended after {count} batches, but its first reading had {len(self._digests)}. {self._needs()}"
            )
        if count == num_done and kept is not None:
            self._restore(reading, kept)
        if not reading.is_complete:
            reading.is_complete = self._all_known = True
            self._write()

    def _check(self, batch: Batch, count: int, digest: bytes) -> None:
        """The same batches in the same order as in the first pass."""
        if count < len(self._digests):
            if digest != self._digests[count]:
                raise DataChangedError(f"{batch.where} differs from its first reading. {self._needs()}")
        elif self._all_known:
            raise DataChangedError(f"{batch.where} comes after the end of the first reading. {self._needs()}")
        else:
            self._digests.append(digest)

    def _needs(self) -> str:
        return (
            "With a checkpoint, every reading must give the same batches in the same order, in each pass and after a "
            f"restart: no shuffling and no random augmentation. {self._path} keeps what was read before: give the same "
            "data again, or delete the file to start anew."
        )

    # ------------------------------------------------------------------ the file

    def _restore(self, reading: _Pass, kept: _Kept) -> None:
        """Put the state back, in place where that is possible: what is large is there only once."""
        begun, restored = dict(reading.state), {}
        first = self.peek()
        device = next(iter(tensors_in((first.args, first.kwargs)))).device
        reading.state.clear()
        with files.reading(self._path, _KEY, CheckpointError) as (_, file):
            for name, key in kept.keys.items():
                if key not in restored:
                    restored[key] = _filled(self._path, key, begun.pop(name, None), file.get_tensor(key), device)
                reading.state[name] = restored[key]
        reading.num_batches, reading.is_complete = kept.num_batches, kept.is_complete

    def _write(self) -> None:
        """All passes. In the state, too, tensors get the plain layout that they will have when they are read back."""
        tensors: dict[str, Tensor] = {}
        by_address: dict[object, str] = {}
        kept = []
        for number, reading in enumerate(self._passes):
            keys = {}
            for name, tensor in reading.state.items():
                address = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
                key = keys[name] = by_address.setdefault(
                    address if tensor.numel() else (number, name), f"{number} {name}"
                )
                if key not in tensors:
                    tensors[key] = tensor.detach().contiguous()
                if not tensor.is_contiguous():
                    reading.state[name] = tensors[key]
            kept.append(asdict(_Kept(reading.task, reading.num_batches, reading.is_complete, keys)))
        tensors = _apart(tensors)
        tensors[_DIGESTS] = torch.frombuffer(bytearray(b"".join(self._digests)), dtype=torch.uint8)
        header: dict[str, Any] = {
            "format": FORMAT,
            "fingerprint": self._fingerprint,
            "every": self._every,
            "hash": self._digests[-1].hex(),
            "passes": kept,
        }
        header["content"] = _content(header, tensors)
        files.write(self._path, tensors, _KEY, header, CheckpointError)


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a checkpoint whose fit is done."""
    Path(path).unlink(missing_ok=True)
    files.remove_leftovers(Path(path))


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, none sharing memory with another."""
    apart: dict[str, Tensor] = {}
    storages = set()
    for key, tensor in tensors.items():
        tensor = tensor.cpu()
        storage = tensor.untyped_storage().data_ptr()
        apart[key] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return apart


def _filled(path: Path, key: str, begun: Tensor | None, kept: Tensor, device: torch.device) -> Tensor:
    """The kept values, in the tensor that a reader began with where there is one."""
    if begun is None:
        return kept.to(device, copy=True)
    if (begun.shape, begun.dtype) != (kept.shape, kept.dtype):
        raise CheckpointError(
            f"{path}: '{key}' has shape {tuple(kept.shape)} and {kept.dtype}, but this fit needs {tuple(begun.shape)} "
            f"and {begun.dtype}. {_ADVICE}"
        )
    return begun.copy_(kept)


def _opened(path: Path, fingerprint: dict[str, str]) -> tuple[list[_Kept], list[bytes]]:
    """Passes and digests of a file, once it is known to be whole and of this fit."""
    with files.reading(path, _KEY, CheckpointError) as (header, file):
        if header.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} has format {header.get('format')!r}; this version of richbll reads format {FORMAT}. {_ADVICE}"
            )
        content = header.pop("content", None)
        if content != _content(header, {key: file.get_tensor(key) for key in file.keys()}):  # noqa: SIM118
            raise CheckpointError(f"{path} is damaged: its content is not what its hash says. {_ADVICE}")
        flat = file.get_tensor(_DIGESTS).numpy().tobytes()
    try:
        written, kept = dict(header["fingerprint"]), [_Kept(**one) for one in header["passes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the header is malformed ({error!r}). {_ADVICE}") from error
    _check_fingerprint(path, written, fingerprint)
    return kept, [flat[start : start + DIGEST_BYTES] for start in range(0, len(flat), DIGEST_BYTES)]


def _check_fingerprint(path: Path, kept: dict[str, str], now: dict[str, str]) -> None:
    differences = [
        f"{name} was {kept.get(name, 'absent')}, is {now.get(name, 'absent')}"
        for name in (now | kept)
        if kept.get(name) != now.get(name)
    ]
    if differences:
        raise CheckpointError(f"{path} belongs to another fit: {'; '.join(differences)}. {_ADVICE}")


def _content(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A hash of everything in a file."""
    digest = new_digest(json.dumps(header, sort_keys=True).encode())
    for key in sorted(tensors):
        add_tensor(digest, key, tensors[key])
    return str(digest.hexdigest())
