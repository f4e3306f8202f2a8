"""What every solver takes and returns."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from richbll.core.moments import Moments, batch_moments, moments_of_batches
from richbll.core.projection import Projection
from richbll.network.batches import Batch
from richbll.network.joining import joined_batches
from richbll.network.network import Network
from richbll.network.ranks import Ranks
from richbll.network.records import Record, RecordReader, SiteShape
from richbll.precision import float64_device

_NAMES = ("num_rows", "gram_projection", "gram_weighted", "residual_sq")

_TOGETHER = 2**22  # elements of φ^r and residuals whose moments are formed at once, where rows are kept anyway

State = dict[str, Tensor]  # what a pass over the data has added up so far, by name


class Source(Protocol):
    """Batches to read: the user's stream, or a held subsample of it."""

    can_be_reread: bool
    num_data: int | None  # how many examples the rows stand for, where these are fewer than all
    ranks: Ranks
    keeps_state: bool  # whether a checkpoint keeps the state of a pass, so that it can be taken up again

    @property
    def num_rows(self) -> int | None:
        """How many rows there are in this process at most, where that is known beforehand."""

    def peek(self) -> Batch:
        """The first batch, which will be read again."""

    def batches(self, task: str, state: State | None = None) -> Iterator[Batch]:
        """All batches, under the name of a task; `state` is what the loop adds to, for checkpoints."""


@dataclass(frozen=True)
class Additive:
    """What two cross moments must have in common to be added."""

    solver: str
    feature_dtype: str
    sketch: dict[str, Any] = field(default_factory=dict)  # what a random projection is drawn from


@dataclass(frozen=True)
class Solution:
    """What is left of the data: its moments and the projection."""

    moments: Moments
    projection: Projection
    cross: Tensor | None = None  # (c, m or q, r) Φ^mᵀΦ^r or its sketch, where it is kept: it adds up with later data's
    additive: Additive | None = None  # with what else


class Solver(Protocol):
    """A way from a network and its data to AᵀA."""

    def __call__(self, network: Network, stream: Source, memory: int) -> Solution:
        """Read the data, within a number of bytes."""


def feature_moments(network: Network, stream: Source) -> tuple[Moments, torch.dtype]:
    """One pass of forward evaluations: the moments of φ^r and the residuals, and the features' dtype."""
    adding = AddedMoments()
    dtype: torch.dtype | None = None
    with stream.ranks.together("features") as block:
        for batch in stream.batches("features", adding.state):
            phi_r, f = network.features(batch)
            dtype, reading = phi_r.dtype, network.reader.read(batch, f)
            adding.add(batch_moments(phi_r, reading.weights, reading.residuals))
        dtype = dtype or feature_dtype(network, stream)
        block.value = adding.shapes()
    return adding.total(stream, block.said), dtype


def feature_dtype(network: Network, stream: Source) -> torch.dtype:
    """Of φ^r, where no batch has shown it: all rows of a subsample are with other processes, or were read before."""
    return network.features(stream.peek())[0].dtype


def read_records(
    reader: RecordReader, stream: Source, task: str, state: State, sites: Iterable[SiteShape], most_bytes: int
) -> Iterator[tuple[Batch, Record]]:
    """One pass over all records. Which routes hold is part of the state: a pass that is taken up goes the same ways."""
    sites = list(sites)
    batches = stream.batches(task, state)
    if not stream.keeps_state:  # a checkpoint stands between two batches
        batches = joined_batches(batches, reader.most_joined)
    for batch in batches:
        reader.routes = state.get("routes", reader.routes)
        for record in reader.read(batch, sites, most_bytes):
            yield batch, record
        state["routes"] = reader.routes
    reader.routes = state.get("routes", reader.routes)


class AddedMoments:
    """Moments of batches, added up in a state that a checkpoint can keep."""

    def __init__(self, state: State | None = None) -> None:
        self.state: State = {} if state is None else state
        self._waiting: list[tuple[Tensor, Tensor | None]] = []  # φ^r and residuals
        self._num_waiting = 0  # their elements

    def add(self, moments: Moments) -> None:
        """One more batch."""
        held = _as_tensors(moments)
        if "num_rows" not in self.state:
            self.state.update(held)
            return
        for name in _NAMES:
            if name not in held:
                self.state.pop(name, None)  # known only where every batch has it
            elif name in self.state:
                self.state[name] += held[name]

    def add_rows(self, phi_r: Tensor, weights: Tensor | None, residuals: Tensor | None) -> None:
        """The moments of rows that are kept elsewhere, too: those of many at once cost less.

        Until the total is asked for, some of them wait, and no checkpoint would see these.
        """
        if weights is not None:  # in many posteriors there are too many of them to wait
            self.add(batch_moments(phi_r, weights, residuals))
            return
        if self._waiting and (self._waiting[0][1] is None) != (residuals is None):
            self._add_waiting()
        self._waiting.append((phi_r, residuals))
        self._num_waiting += phi_r.numel() + (0 if residuals is None else residuals.numel())
        if self._num_waiting >= _TOGETHER:
            self._add_waiting()

    def _add_waiting(self) -> None:
        if self._waiting:
            phi_r, residuals = (
                [phi for phi, _ in self._waiting],
                [more for _, more in self._waiting if more is not None],
            )
            self.add(moments_of_batches(phi_r, residuals))
            self._waiting, self._num_waiting = [], 0

    def shapes(self) -> dict[str, list[int]]:
        """Of what there is: what a process tells the others before all is added up."""
        self._add_waiting()
        return {name: list(self.state[name].shape) for name in _NAMES if name in self.state}

    def total(self, stream: Source, said: list[dict[str, list[int]]]) -> Moments:
        """Of all batches and processes, with the number of examples that a subsample stands for."""
        _make_alike(self.state, stream, [found for found in said if found])
        count = self.state["num_rows"].to(torch.float64)  # exact, and of one type with the others
        stream.ranks.add(count, *(self.state[name] for name in _NAMES if name in self.state and name != "num_rows"))
        self.state["num_rows"].copy_(count)
        num_rows = int(count)
        moments = Moments(
            num_rows=num_rows,
            num_data=num_rows,
            gram_projection=self.state["gram_projection"],
            gram_weighted=self.state.get("gram_weighted"),
            residual_sq=self.state.get("residual_sq"),
        )
        return moments if stream.num_data is None else replace(moments, num_data=stream.num_data)


def _make_alike(state: State, stream: Source, known: list[dict[str, list[int]]]) -> None:
    """What all processes with rows have, in each of them; zeros in one that holds no row of a subsample."""
    for name in _NAMES:
        if not all(name in found for found in known):
            state.pop(name, None)
        elif name not in state:
            dtype = torch.int64 if name == "num_rows" else torch.float64
            state[name] = torch.zeros(known[0][name], dtype=dtype, device=float64_device(stream.peek().device))


def _as_tensors(moments: Moments) -> State:
    count = torch.tensor(moments.num_rows, dtype=torch.int64, device=moments.gram_projection.device)
    state = {"num_rows": count, "gram_projection": moments.gram_projection}
    if moments.gram_weighted is not None:
        state["gram_weighted"] = moments.gram_weighted
    if moments.residual_sq is not None:
        state["residual_sq"] = moments.residual_sq
    return state
