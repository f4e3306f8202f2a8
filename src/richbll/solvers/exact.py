"""Exact: features first, then the gradients in their orthonormal basis U, H = UᵀΦ^mΦ^mᵀU.

Contracting over the data first needs no random projection and no N × m Jacobian. Where what the gradients are made from
fits into memory, the data is read once; else twice, and in blocks of parameters where C = Φ^mᵀU does not fit either.
`plan` says which layer takes which route.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from richbll.core.moments import Moments
from richbll.core.projection import Spectrum, refined_projection, spectrum_of
from richbll.errors import DataChangedError
from richbll.linalg import columns, from_lower, gram
from richbll.network.agreement import tried_reader
from richbll.network.batches import Batch
from richbll.network.capture import Site
from richbll.network.joining import joined_batches
from richbll.network.network import Network
from richbll.network.ranks import Ranks
from richbll.network.records import RecordReader, SiteShape, check_finite
from richbll.network.structure import Gradient
from richbll.precision import Sum, float64_device, no_autocast
from richbll.room import Room
from richbll.solvers.plan import Plan, Size, can_be_kept, exact_plan, must_fit
from richbll.solvers.routes.explicit import add_product, add_square, kept_energy
from richbll.solvers.routes.gram import drop_rows, gram_energy, joined, keep_rows, kept_rows
from richbll.solvers.routes.ranges import Range, blocks_of_ranges, held_ranges
from richbll.solvers.routes.swapped import Swapping, swaps
from richbll.solvers.solution import AddedMoments, Solution, Source, State, feature_moments, read_records

_SLICE = 2**16  # parameters at a time when C is squared
_SEARCHED = 128  # from so many features on, those that are always zero are left out of products
_EVEN = 8  # U has zeros up to a multiple of so many columns: products with rows of odd lengths take a tenth longer
_RECENT = 1024  # rows whose part of C is summed in float32; to add that to float64 costs as much as some tens of rows


@dataclass
class _Kept:
    """What is kept of a batch, or of some of its rows."""

    batch: Batch
    phi_r: Tensor
    gradients: dict[Site, list[Gradient]]


def solve(network: Network, stream: Source, memory: int) -> Solution:
    """Moments and projection, within a number of bytes."""
    ranks = stream.ranks
    reader = tried_reader(network, stream)
    with ranks.together("planning") as block:
        size = Size(stream.num_rows, network.last_layer.num_features, network.num_gradients, memory)
        block.value = bool(reader.shapes) and not stream.keeps_state and can_be_kept(reader.shapes, size)
    if all(block.said):
        found = _read_once(network, reader, stream, memory)
        if found is not None:
            return found
    return _read_twice(network, reader, stream, memory)


# ---------------------------------------------------------------------- gradients kept


def _read_once(network: Network, reader: RecordReader, stream: Source, memory: int) -> Solution | None:
    """None where there was more to keep than the first batch let expect."""
    ranks = stream.ranks
    adding, kept, num_bytes = AddedMoments(), [], 0
    with ranks.together("features and gradients") as block:
        for batch in joined_batches(stream.batches("features and gradients"), reader.most_joined):
            for record in reader.read(batch, reader.shapes, memory // 4, gradients_stay=True):
                adding.add_rows(record.phi_r, record.reading.weights, record.reading.residuals)
                gradients = {site: [use.kept() for use in uses] for site, uses in record.gradients.items()}
                kept.append(_Kept(batch.rows(record.rows), record.phi_r, gradients))
                num_bytes += sum(t.nbytes for uses in gradients.values() for use in uses for t in use.tensors)
                if num_bytes > memory and ranks.size == 1 and stream.can_be_reread:
                    return None
        if not kept:  # all rows of a subsample are with other processes
            none = stream.peek().rows(slice(0, 0))
            phi_r = network.features(stream.peek())[0][:0]
            kept.append(_Kept(none, phi_r.to(float64_device(phi_r.device)), {}))
        block.value = adding.shapes()
    moments, dtype = adding.total(stream, block.said), kept[0].phi_r.dtype
    spectrum = _spectrum(moments, dtype, ranks)
    whitener, features = spectrum.rough_whitener, [part.phi_r for part in kept]
    sizes, is_alive = [len(phi) for phi in features], moments.gram_projection.diagonal() > 0
    alive = spectrum.num_alive
    U = torch.empty(sum(sizes), -(-alive // _EVEN) * _EVEN, dtype=working(dtype), device=network.device)
    U[:, alive:] = 0
    UtU = torch.zeros(alive - spectrum.num_sure, alive).to(whitener)
    for u, rows in zip(_whitened(features, whitener, is_alive), torch.split(U, sizes), strict=True):
        rows[:, :alive].copy_(u)  # where the gradients are, in their precision
        if UtU.numel():
            UtU += u[:, spectrum.num_sure :].mT @ u  # few rows and many columns take half as long as the transpose
    UtU = UtU.mT.contiguous()
    ranks.add(UtU)
    size = Size(moments.num_rows, spectrum.num_alive, network.num_gradients, memory)
    plan = exact_plan(reader.shapes, size, may_cache=True)
    with no_autocast(network.device):
        H, trace = _energy(kept, U, spectrum, plan, size, ranks)
    return Solution(moments, refined_projection(spectrum, UtU, H, trace, dtype))


def _whitened(phi_r: list[Tensor], whitener: Tensor, is_alive: Tensor) -> Iterator[Tensor]:
    """U = Φ^r V, batch by batch. Features that are always zero have no part in it."""  # (n, alive)
    alive = None if len(is_alive) < _SEARCHED or bool(is_alive.all()) else is_alive.nonzero().flatten()
    V = whitener if alive is None else whitener[alive]
    for phi in phi_r:
        yield (phi if alive is None else columns(phi, alive)).to(torch.float64) @ V


def _energy(
    kept: list[_Kept], U: Tensor, spectrum: Spectrum, plan: Plan, size: Size, ranks: Ranks
) -> tuple[Tensor, Tensor]:
    """H and tr K, summed over all routes and all processes; U may have columns of zeros behind those of H."""
    c, alive, device = size.num_gradients, size.rank, U.device
    H = torch.zeros(c, alive, alive, dtype=torch.float64, device=float64_device(device))
    trace = torch.zeros(c, dtype=torch.float64, device=H.device)
    norms = shares = trace.new_zeros(c, 0)  # squared, of this process's rows; and its shares in those of all rows
    parts, swapping = [part.gradients for part in kept], None
    explicit, others = plan.by_route("explicit"), plan.by_route("hadamard", "gram")
    if explicit and alive:
        at_once = 1 if ranks.size == 1 else 2 * ranks.size  # one for each process, and as many on their way
        most_bytes = size.memory // 8
        most = max(1, most_bytes // (4 * c * alive * at_once))
        changing = swaps(parts, explicit, size, U.element_size(), ranks)
        swapping = Swapping(parts, changing, U[:, :alive], ranks) if changing else None
        added_up = [shape for shape in explicit if swapping is None or shape.site not in swapping.sites]
        ranges = held_ranges(added_up, c * alive, most)
        more, norms = kept_energy(parts, ranges, U[:, :alive], c, ranks, most_bytes)
        H += more
        if swapping is not None:
            more, shares = swapping.energy(c, most, most_bytes)
            H += more
    if others and alive:
        rows = joined(parts, others, plan.formed, ranks, device)
        more, extra = gram_energy(rows, ranks.rows(U), spectrum.kept_scale, c, ranks)
        H += more[:, :alive, :alive]
        trace += extra
    trace += norms.sum(dim=1) + shares.sum(dim=1)
    ranks.add(H, trace, shares)
    if explicit and alive:
        norms = norms if swapping is None else norms + swapping.own_rows(shares)
        with ranks.together("gradients"):
            for part, squared in zip(kept, torch.split(norms, [len(p.phi_r) for p in kept], dim=1), strict=True):
                check_finite(part.batch, squared)
    return H, trace


# ---------------------------------------------------------------------- batches read again


def _read_twice(network: Network, reader: RecordReader, stream: Source, memory: int) -> Solution:
    moments, dtype = feature_moments(network, stream)
    spectrum = _spectrum(moments, dtype, stream.ranks)
    size = Size(moments.num_rows, spectrum.num_alive, network.num_gradients, memory)
    plan = exact_plan(reader.shapes, size, may_cache=False)
    c, alive, device = size.num_gradients, size.rank, moments.gram_projection.device
    must_fit(
        f"One parameter with {c} output(s) and {alive} directions", 8 * c * alive, memory // 4, "Raise the budget."
    )
    H = torch.zeros(c, alive, alive, dtype=torch.float64, device=device)
    trace = torch.zeros(c, dtype=torch.float64, device=device)
    UtU = torch.eye(alive, dtype=torch.float64, device=device)[:, spectrum.num_sure :]
    blocks = blocks_of_ranges(plan.by_route("explicit"), memory // 4 // max(1, 8 * c * alive)) if alive else []
    others = plan.by_route("hadamard", "gram") if alive else []
    if others and not blocks:
        blocks = [[]]
    for number, block in enumerate(blocks, start=1):
        task = "gradients" if len(blocks) == 1 else f"gradients {number}/{len(blocks)}"
        again = _Again(network, reader, spectrum, block, others if number == 1 else [], plan.formed, memory)
        with stream.ranks.together(task):
            again.read(stream, task)
        with no_autocast(device):
            more, extra = again.energy(stream.ranks, moments, dtype)
        H += more
        trace += extra
        UtU = again.state["UtU"]
    return Solution(moments, refined_projection(spectrum, UtU, H, trace, dtype))


class _Again:
    """One more pass over the data: C of a block of parameters, and what K needs of others."""

    def __init__(
        self,
        network: Network,
        reader: RecordReader,
        spectrum: Spectrum,
        block: list[Range],
        others: list[SiteShape],
        formed: Collection[Site],
        memory: int,
    ) -> None:
        self._network, self._reader, self._memory = network, reader, memory
        self._block, self._others, self._formed = block, others, formed
        self._whitener, self._num_sure = spectrum.rough_whitener, spectrum.num_sure
        self._kept_scale, self._room = spectrum.kept_scale, Room()
        sites = {part.shape.site: part.shape for part in block} | {shape.site: shape for shape in others}
        self._wanted = list(sites.values())
        c, (r, alive), device = network.num_gradients, self._whitener.shape, self._whitener.device
        num_elements = sum(part.stop - part.start for part in block)
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self.state: State = {
            "C": zeros(c, alive, num_elements),
            "gram": zeros(r, r),
            "UtU": zeros(alive, alive - spectrum.num_sure),
            "trace": zeros(c),
        }

    def read(self, stream: Source, task: str) -> None:
        """Add up over all batches."""
        records = read_records(self._reader, stream, task, self.state, self._wanted, self._memory // 4)
        for batch, record in records:
            phi = record.phi_r.to(torch.float64)
            U = phi @ self._whitener  # (n, alive)
            self.state["gram"] += gram(phi)
            self.state["UtU"] += U.mT @ U[:, self._num_sure :]
            with no_autocast(U.device):
                self._add(batch.rows(record.rows), record.gradients, U.to(working(record.phi_r.dtype)))

    def _add(self, batch: Batch, gradients: dict[Site, list[Gradient]], U: Tensor) -> None:
        norms, C = Sum((self._network.num_gradients, len(U)), U.device), self._recent(U)
        sizes = [part.stop - part.start for part in self._block]
        for part, elements in zip(self._block, torch.split(C, sizes, dim=2), strict=True):
            add_product(elements, norms, [gradients[part.shape.site]], part, U, self._room)
        check_finite(batch, norms.value())
        self.state["trace"] += norms.value().sum(dim=1)
        if self._others:
            keep_rows(self.state, self._others, gradients, U)

    def _recent(self, U: Tensor) -> Tensor:
        """Where the products of some more rows go: C itself, or in float32 a sum that is not in it yet."""
        if U.dtype == self.state["C"].dtype:
            return self.state["C"]
        if "recent" not in self.state:
            self.state["recent"] = torch.zeros_like(self.state["C"], dtype=U.dtype)
            self.state["num_recent"] = torch.zeros((), dtype=torch.int64)
        elif int(self.state["num_recent"]) + len(U) > _RECENT:
            self._settle()
        self.state["num_recent"] += len(U)
        return self.state["recent"]

    def _settle(self) -> None:
        """What is recent into C."""
        if "recent" in self.state:
            self.state["C"] += self.state["recent"]
            self.state["recent"].zero_()
            self.state["num_recent"].zero_()

    def energy(self, ranks: Ranks, moments: Moments, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """H and tr K of this pass, from all processes. What is large leaves the state, which a checkpoint may keep."""
        if "H" in self.state:
            return self.state["H"], self.state["trace"]
        ranks.add(self.state["gram"], self.state["UtU"])
        _check_same_data(moments.gram_projection, self.state["gram"], dtype)
        self._settle()
        self.state.pop("recent", None)
        C, trace = self.state.pop("C"), self.state["trace"]
        c, alive = C.shape[:2]
        square = Sum((c, alive, alive), C.device)
        step = -(-_SLICE // ranks.size)
        for start in range(0, C.shape[2], step * ranks.size):
            parts = [C[:, :, begin : begin + step] for begin in range(start, start + step * ranks.size, step)]
            flat = torch.cat([part.to(working(dtype)).flatten() for part in parts])
            add_square(square, ranks.share(flat, [part.numel() for part in parts])(), c, alive)
        H = from_lower(square.value())
        if self._others:
            self.state.setdefault("kept U 0", C.new_zeros(0, alive, dtype=working(dtype)))  # there may be no rows here
            rows, U = kept_rows(self.state, self._others, self._formed, ranks)
            more, extra = gram_energy(rows, U, self._kept_scale, c, ranks)
            H += more
            trace = trace + extra
        ranks.add(H, trace)
        drop_rows(self.state)
        self.state |= {"H": H, "trace": trace}
        return H, trace


def _spectrum(moments: Moments, dtype: torch.dtype, ranks: Ranks) -> Spectrum:
    """The first process's in all of them: eigenvectors of close eigenvalues are as different as rounding is."""
    spectrum = spectrum_of(moments.gram_projection, moments.num_rows, dtype)
    ranks.same(spectrum.Q, spectrum.s)
    return spectrum


def working(dtype: torch.dtype) -> torch.dtype:
    """What products are formed in: float64 for float64 models, else float32."""
    return torch.promote_types(dtype, torch.float32)


def _check_same_data(first: Tensor, second: Tensor, dtype: torch.dtype) -> None:
    """Both passes saw the same examples, in whatever order: the same Gram matrix."""
    difference = float((first - second).norm() / first.norm())
    if difference > max(torch.finfo(dtype).eps ** 0.5 / 10, 1e-9):
        raise DataChangedError(
            f"The second reading of the data differs from the first (Gram matrices by {difference:.2g}). The exact "
            "solver reads the data twice: turn random augmentation off, and if the model itself is random in eval "
            'mode, make it deterministic; or use solver="cross", which reads the data once.'
        )
