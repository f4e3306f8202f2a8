"""K = Φ^mΦ^mᵀ between examples, block by block, and H = UᵀKU; no gradient of a wide layer is ever formed.

For a linear layer K = (a aᵀ) ∘ (g gᵀ). K is symmetric, so each pair of examples is met once, in blocks i ≤ j, and with

    S = Σ_i U_iᵀ (½ K_ii U_i + Σ_{j>i} K_ij U_j)

H = S + Sᵀ.

In float32 K is off by ε‖φ^m‖², and so is H; its directions count 1/s² in AᵀA, which features that hardly vary make
large. Where that would show, K is formed again in float64.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.linalg import columns, used_columns
from richbll.network.capture import Site
from richbll.network.outputs import rounding
from richbll.network.ranks import Ranks
from richbll.network.records import SiteShape
from richbll.network.structure import Dense, Gradient, Outer
from richbll.precision import Sum, float64_device, summing_dtype
from richbll.products import add_to, product
from richbll.room import Room
from richbll.solvers.routes.forms import Uses, forms_of, held_at, side_by_side
from richbll.solvers.solution import State

_SIDE = 512  # of a tile of K: it stays in fast memory, and little is formed twice
_WIDE = 1024  # where K of one output reads so many numbers of an example,
_LONGER = (1, 2)  # tiles have so many times as many columns as rows, narrow or wide,
_CORNERS = (1, 4)  # and are cut in so many parts where they meet the diagonal
_PRODUCTS = 2**18  # elements at a time of products between positions
_SEARCHED = 128  # from so many columns on, zeros are looked for
_BLOCK = 1024  # rows of KU that are summed up in K's precision; fewer where several processes share them
_ROUGH = 1e-4  # an error of I + AᵀA that would show in variances


@dataclass(frozen=True)
class Rowwise:
    """What K needs of all examples: the factors of linear layers, and dense gradients of everything else."""

    outers: dict[Site, list[Outer]]  # several uses of one weight
    dense: dict[Site, Dense]

    @property
    def positions(self) -> int:
        """At most so many of one example."""
        return max((use.left.shape[2] for uses in self.outers.values() for use in uses), default=1)

    @property
    def width(self) -> int:
        """How many numbers K reads of an example."""
        factors = (t.shape[2] * t.shape[3] for uses in self.outers.values() for use in uses for t in use.tensors)
        return sum(factors) + sum(one.size for one in self.dense.values())

    def to(self, device: torch.device) -> "Rowwise":
        """The same on another device."""
        outers = {
            site: [Outer(use.left.to(device), use.right.to(device)) for use in uses]
            for site, uses in self.outers.items()
        }
        return Rowwise(outers, {site: Dense(one.values.to(device)) for site, one in self.dense.items()})

    def blocks(self, dtype: torch.dtype) -> "Blocks":
        """K, with products in this precision."""
        pairs = [(mine, theirs) for uses in self.outers.values() for mine in uses for theirs in uses]
        return Blocks([_Term.of(*pair) for pair in pairs], list(self.dense.values()), dtype)


@dataclass(frozen=True)
class _Term:
    """(left leftᵀ) ∘ (right rightᵀ) of two uses of one weight, which may be the same.

    ⟨φ_i, φ_j⟩ = Σ_tt' (left_it·left_jt') (right_it·right_jt') over T and T' positions, without forming either. The
    first pair of factors has as many outputs as there are.
    """

    factors: tuple[tuple[Tensor, Tensor], ...]  # two pairs: (N T, d) and (N T', d), or with c or 1 in front
    T: int
    T_other: int

    @classmethod
    def of(cls, mine: Outer, theirs: Outer) -> "_Term":
        pairs = [
            (flat := a.flatten(1, 2), flat if a is b else b.flatten(1, 2))
            for a, b in zip(mine.tensors, theirs.tensors, strict=True)
        ]
        pairs.sort(key=lambda pair: -max(map(len, pair)))
        shared = [(a[0], b[0]) if len(a) == len(b) == 1 else (a, b) for a, b in pairs]
        return cls(tuple(shared), mine.left.shape[2], theirs.left.shape[2])

    def rows(self, mine: slice, theirs: slice) -> list[tuple[Tensor, Tensor]]:
        """The factors of some examples."""
        some = slice(mine.start * self.T, mine.stop * self.T)
        others = slice(theirs.start * self.T_other, theirs.stop * self.T_other)
        return [(a[..., some, :], b[..., others, :]) for a, b in self.factors]

    def over_positions(self, products: Tensor) -> Tensor:
        """Summed over pairs of positions."""  # (…, n T, n' T') → (…, n, n')
        if self.T == self.T_other == 1:
            return products
        *lead, rows, columns = products.shape
        shape = (*lead, rows // self.T, self.T, columns // self.T_other, self.T_other)
        return products.view(shape).sum(dim=(-3, -1))


class Blocks:
    """Blocks of K, one after another in the same memory: fresh memory for each costs as much as its products do."""

    def __init__(self, terms: list[_Term], dense: list[Dense], dtype: torch.dtype) -> None:
        self._terms, self._dense, self._dtype = terms, dense, dtype
        self._room = Room()

    def block(self, mine: slice, theirs: slice) -> Tensor:
        """K between some examples and others. The next block takes its place."""  # (n, n') or (c, n, n')
        total: Tensor | None = None  # in place 0, or in memory of its own
        for term in self._terms:
            first, second = term.rows(mine, theirs)
            place = 0 if total is None else 1
            products, factors = self._product(place, *first), self._product(place + 1, *second)
            if total is not None and term.T == term.T_other == 1 and total.dim() >= products.dim():
                total.addcmul_(products, factors)
            else:
                products *= factors
                total = _plus(total, term.over_positions(products))
        for dense in self._dense:
            values = dense.values.squeeze(0)
            place = 0 if total is None else 1
            total = _plus(total, self._product(place, values[..., mine, :], values[..., theirs, :]))
        assert total is not None
        return total

    def _product(self, place: int, a: Tensor, b: Tensor) -> Tensor:
        """a_i · b_j, in a place whose content is lost."""
        if a.dtype != self._dtype or b.dtype != self._dtype:
            a, b = a.to(self._dtype), b.to(self._dtype)
        return product(a, b.mT, room=self._room, place=place)


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more) if total.dim() >= more.dim() else total + more


def joined(
    parts: list[dict[Site, Uses]],
    sites: list[SiteShape],
    formed: Collection[Site],
    ranks: Ranks,
    device: torch.device,
) -> Rowwise:
    """The gradients of all batches and all processes at some sites, some of them formed."""
    outers: dict[Site, list[Outer]] = {}
    dense: dict[Site, Dense] = {}
    same_left: dict[tuple[int, ...], list[list[Tensor]]] = {}  # of sites of one use each, as a weight and its bias:
    for shape, form in zip(
        sites, forms_of(parts, sites, formed, ranks), strict=True
    ):  # the left factor, and all right ones
        known = same_left.get(form.group, []) if len(form.shapes) == 2 else []
        tensors = form.parts(held_at(parts, shape), device, without_left=bool(known))
        if len(form.shapes) == 2:
            same_left[form.group] = [*known, *tensors]
            continue
        rows = [ranks.rows(side_by_side([some]), dim=1) for some in tensors]
        if form.by_factors:  # of all uses, which have their columns in common
            outers[shape.site] = [Outer(left, right) for left, right in zip(rows[::2], rows[1::2], strict=True)]
        else:
            dense[shape.site] = Dense(rows[0])
    for number, (left, *rights) in enumerate(same_left.values()):  # left (right, right', …)ᵀ
        factors = [ranks.rows(side_by_side(some), dim=1) for some in ([left], rights)]
        outers[("with one left factor", number)] = [Outer(*map(_without_zeros, factors))]
    return Rowwise(outers, dense)


def _without_zeros(factor: Tensor) -> Tensor:
    """Columns that are zero for all examples, as those of a dead ReLU, add nothing to an inner product.

    Among few columns to look for them takes longer than to multiply them.
    """
    if factor.shape[3] < _SEARCHED:
        return factor
    used = used_columns(factor.flatten(0, 2))
    return factor if len(used) == factor.shape[3] else columns(factor, used)


def keep_rows(state: State, sites: list[SiteShape], gradients: dict[Site, list[Gradient]], U: Tensor) -> None:
    """Keep what K needs of some examples, in a state that a checkpoint can write."""
    number = sum(name.startswith("kept U ") for name in state)
    state[f"kept U {number}"] = U
    for place, shape in enumerate(sites):
        for use, gradient in enumerate(gradients[shape.site]):
            if not isinstance(gradient, Outer):
                gradient = Dense(gradient.dense(0, shape.size))
            for part, tensor in enumerate(gradient.kept().tensors):
                state[f"kept {number} {place} {use} {part}"] = tensor


def kept_rows(state: State, sites: list[SiteShape], formed: Collection[Site], ranks: Ranks) -> tuple[Rowwise, Tensor]:
    """What was kept of all batches, in all processes, and U of all their rows."""
    parts: list[dict[Site, Uses]] = []
    count = sum(name.startswith("kept U ") for name in state)
    for number in range(count):
        part: dict[Site, Uses] = {shape.site: [] for shape in sites}
        for place, shape in enumerate(sites):
            use = 0
            while (key := f"kept {number} {place} {use}") + " 0" in state:
                first, second = state[f"{key} 0"], state.get(f"{key} 1")
                part[shape.site].append(Dense(first) if second is None else Outer(first, second))
                use += 1
        parts.append(part)
    U = torch.cat([state[f"kept U {number}"] for number in range(count)])
    return joined(parts, sites, formed, ranks, U.device), ranks.rows(U)


def drop_rows(state: State) -> None:
    """Forget what was kept."""
    for name in [name for name in state if name.startswith("kept ")]:
        del state[name]


def gram_energy(rows: Rowwise, U: Tensor, s: Tensor, c: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """H (c, ρ, ρ) and tr K (c,), float64, of this process's part; s holds the singular values of the kept directions.

    U (N, ρ) is that of all processes; blocks are shared out among them.
    """
    H, trace = energy_in(rows, U, c, ranks, U.dtype)
    if U.dtype != torch.float64 and _is_rough(H, trace, s, U, ranks):
        there = float64_device(U.device)
        H, trace = energy_in(rows.to(there), U.to(there), c, ranks, torch.float64)
    return H, trace


def _is_rough(H: Tensor, trace: Tensor, s: Tensor, U: Tensor, ranks: Ranks) -> bool:
    """Whether an error of ε tr K / N in H_ii is much in 1 + H_ii/s_i² for some direction i; ε is that of U's device."""
    energy, trace = H.diagonal(dim1=1, dim2=2).clone(), trace.clone()
    ranks.add(energy, trace)
    error = rounding(U.dtype, U.device) * trace.unsqueeze(1) / max(1, len(U))  # (c, 1)
    return bool((error > _ROUGH * (s.square() + energy[:, : len(s)].clamp_min(0))).any())


def energy_in(rows: Rowwise, U: Tensor, c: int, ranks: Ranks, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same, with K in one precision."""
    N, rho = U.shape
    block = _BLOCK if ranks.size == 1 else min(_BLOCK, max(64, N // (4 * ranks.size)))
    is_wide = c == 1 and rows.width >= _WIDE
    height, width = _tile_shape(rows.positions, dtype.itemsize // U.dtype.itemsize, _LONGER[is_wide])
    U, blocks = U.to(dtype), rows.blocks(dtype)
    S, trace = Sum((c, rho, rho), U.device), Sum((c,), U.device)
    for some in _shared_out(_parts(0, N, block), ranks):
        products = []
        for mine in _parts(some.start, some.stop, height):
            KU = _on_diagonal(blocks, mine, U, trace, _CORNERS[is_wide])  # (n, ρ) or (c, n, ρ)
            for others in _parts(mine.stop, N, width):
                KU = _multiplied(KU, blocks.block(mine, others), U[others])
            products.append(KU)
        S.add(product(U[some].mT, torch.cat(products, dim=-2)))
    half = S.value()
    return half + half.mT, trace.value()


def _on_diagonal(blocks: Blocks, mine: slice, U: Tensor, trace: Sum, corners: int) -> Tensor:
    """½ K_ii U_i + Σ_{j>i} K_ij U_j over so many blocks i and j of some rows, whose K_ii add to the trace."""
    products = []
    for rows in _parts(mine.start, mine.stop, -(-(mine.stop - mine.start) // corners)):
        K = blocks.block(rows, slice(rows.start, mine.stop))  # (n, n') or (c, n, n')
        itself = K[..., : rows.stop - rows.start]
        trace.add(itself.diagonal(dim1=-2, dim2=-1).sum(dim=-1, dtype=summing_dtype(U.device)))
        itself /= 2
        products.append(product(K, U[rows.start : mine.stop]))
    return torch.cat(products, dim=-2) if len(products) > 1 else products[0]


def _tile_shape(T: int, times_as_wide: int, times_as_long: int) -> tuple[int, int]:
    """Rows and columns of K at a time, fewer where each is made of T² products between positions."""
    among_positions = T * (times_as_long * _SIDE**2 / _PRODUCTS) ** 0.5 if T > 1 else 1
    fewer = max(times_as_wide, among_positions)
    return max(1, int(_SIDE / fewer)), max(1, int(times_as_long * _SIDE / fewer))


def _parts(start: int, stop: int, most: int) -> list[slice]:
    """From start to stop in as few parts as there can be of at most so many, of about one size."""
    size, count = stop - start, -(-(stop - start) // most)
    return [slice(start + size * k // count, start + size * (k + 1) // count) for k in range(count)]


def _multiplied(total: Tensor, K: Tensor, U: Tensor) -> Tensor:
    """total + K U; of one output in the total's place."""
    if total.dim() > 2:
        return _plus(total, K @ U)
    add_to(total, K, U)
    return total


def _shared_out(parts: list[slice], ranks: Ranks) -> list[slice]:
    """This process's rows of blocks: long ones (early) and short ones (late) in turn."""
    mine = []
    for number, part in enumerate(parts):
        lap, seat = divmod(number, ranks.size)
        if (seat if lap % 2 == 0 else ranks.size - 1 - seat) == ranks.rank:
            mine.append(part)
    return mine
