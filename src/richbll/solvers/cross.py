"""Exact in one pass: the cross moment Φ^mᵀΦ^r, which is additive, for streams that can be read only once.

H = VᵀΦ^rᵀ Φ^m Φ^mᵀ Φ^r V follows afterwards. Rounding is amplified where the features are nearly collinear, so the
products are formed in float64; `exact` needs no such care.
"""

import sys
from typing import Any, Protocol

import torch
from torch import Tensor

from richbll.core.moments import Moments, batch_moments
from richbll.core.projection import Projection, spectrum_of
from richbll.network.agreement import tried_reader
from richbll.network.network import Network
from richbll.network.records import Record, RecordReader, check_finite
from richbll.precision import Sum, float64_device, no_autocast
from richbll.room import Room
from richbll.solvers.plan import must_fit
from richbll.solvers.routes.explicit import add_product
from richbll.solvers.routes.ranges import ranges_of
from richbll.solvers.solution import AddedMoments, Additive, Solution, Source, State, feature_dtype, read_records


def solve(network: Network, stream: Source, memory: int) -> Solution:
    """Moments and projection, with the cross moment in at most three quarters of the memory."""
    c, r = network.num_gradients, network.last_layer.num_features
    m = sum(network.parameter_sizes.values())
    check_fits(c, m, r, memory)
    reader = tried_reader(network, stream)
    state: State = {
        "cross": torch.zeros(c, m, r, dtype=torch.float64, device=float64_device(network.device)),
        "trace": torch.zeros(c, dtype=torch.float64, device=float64_device(network.device)),
    }
    return additive(network, reader, stream, state, memory, _Cross(network, reader, memory))


class _Cross:
    """Adds a record to the cross moment. Parameters are in the model's order, whatever rules there are."""

    solver, most_bytes = "cross", sys.maxsize

    def __init__(self, network: Network, reader: RecordReader, memory: int) -> None:
        self._shapes, self._memory, self._room = reader.shapes, memory, Room()
        self.sketch: dict[str, Any] = {}
        self._begins, begin = {}, 0
        for name, size in network.parameter_sizes.items():
            self._begins[name] = begin
            begin += size

    def __call__(self, cross: Tensor, record: Record) -> Tensor:
        """Adds in place; returns the examples' squared norms (c, n)."""
        phi = record.phi_r.to(torch.float64)
        c, r = len(cross), phi.shape[1]
        norms = Sum((c, len(phi)), phi.device)
        for part in ranges_of(self._shapes, max(1, self._memory // 16 // (8 * c * r))):
            C = phi.new_zeros(c, r, part.stop - part.start)
            add_product(C, norms, [record.gradients[part.shape.site]], part, phi, self._room)
            name, start = part.shape.site
            begin = self._begins[name] + start
            cross[:, begin + part.start : begin + part.stop] += C.mT
        return norms.value()


class AddRecord(Protocol):
    """Adds a record to a cross moment in place, and returns the examples' squared norms (c, n)."""

    @property
    def solver(self) -> str:
        """The name of the kind of cross moment."""

    @property
    def most_bytes(self) -> int:
        """Of activations at a time, where fewer are faster than all that fit."""

    @property
    def sketch(self) -> dict[str, Any]:
        """What a random projection is drawn from, in words and numbers; nothing for the cross moment itself."""

    def __call__(self, cross: Tensor, record: Record) -> Tensor:
        """One more record."""


def additive(
    network: Network, reader: RecordReader, stream: Source, state: State, memory: int, add: AddRecord
) -> Solution:
    """One pass over the data that adds up the moments and a cross moment or its sketch."""
    adding = AddedMoments(state)
    ranks = stream.ranks
    dtype: torch.dtype | None = None
    with ranks.together("features and gradients") as block:
        most_bytes = min(add.most_bytes, memory // 4 if 2 * state["cross"].nbytes <= memory else memory // 8)
        records = read_records(reader, stream, "features and gradients", state, reader.shapes, most_bytes)
        for batch, record in records:
            dtype = record.phi_r.dtype
            adding.add(batch_moments(record.phi_r, record.reading.weights, record.reading.residuals))
            if reader.shapes:
                with no_autocast(record.phi_r.device):
                    norms = add(state["cross"], record)
                check_finite(batch.rows(record.rows), norms)
                state["trace"] += norms.sum(dim=1, dtype=torch.float64)
        dtype = dtype or feature_dtype(network, stream)
        block.value = adding.shapes()
    moments = adding.total(stream, block.said)
    ranks.add(state["cross"], state["trace"])
    projection = projection_from(state["cross"], moments, state["trace"], dtype)
    return Solution(moments, projection, state["cross"], Additive(add.solver, str(dtype), add.sketch))


def projection_from(cross: Tensor, moments: Moments, trace_m: Tensor, dtype: torch.dtype) -> Projection:
    """H = (cross V)ᵀ (cross V) with V the whitener of the Gram matrix."""
    spectrum = spectrum_of(moments.gram_projection, moments.num_rows, dtype)
    C = cross @ spectrum.whitener  # (c, m, ρ)
    return Projection(spectrum, H=C.mT @ C, trace_m=trace_m)


def cross_bytes(c: int, m: int, r: int) -> int:
    """What the cross moment takes."""
    return 8 * c * m * r


def check_fits(c: int, m: int, r: int, memory: int) -> None:
    """The cross moment, in three quarters of the memory."""
    must_fit(
        f"The cross moment of {m:,} parameters with {r} features and {c} output(s)",
        cross_bytes(c, m, r),
        memory * 3 // 4,
        'Give data that can be read twice (a DataLoader or a list), solver="sketch", a subsample of a number of rows, '
        "or a larger budget.",
    )
