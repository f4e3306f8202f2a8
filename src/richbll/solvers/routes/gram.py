"""K = Φ^mΦ^mᵀ between examples, block by block, and H = UᵀKU; no gradient of a wide layer is ever formed.

For a linear layer K = (a aᵀ) ∘ (g gᵀ). K is symmetric, so only blocks i ≤ j are made, and with

    S = Σ_i U_iᵀ (½ K_ii U_i + Σ_{j>i} K_ij U_j)

H = S + Sᵀ.

In float32 K is off by ε‖φ^m‖², and so is H; its directions count 1/s² in AᵀA, which features that hardly vary make
large. Where that would show, K is formed again in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.network.capture import Site
from richbll.network.outputs import rounding
from richbll.network.ranks import Ranks
from richbll.network.records import SiteShape
from richbll.network.structure import Dense, Gradient, Outer
from richbll.solvers.routes.forms import Uses, forms_of, held_at
from richbll.solvers.solution import State

_GLIMPSE = 512  # rows that show most of the columns which are not zero
_NARROW = 512  # factors together so wide: blocks of K that stay in fast memory count for more than long products
_BLOCK = 512  # rows at a time; fewer where several processes share them
_ROUGH = 1e-4  # an error of I + AᵀA that would show in variances


@dataclass(frozen=True)
class Rowwise:
    """What K needs of all examples: the factors of linear layers, and dense gradients of everything else."""

    outers: dict[Site, list[Outer]]  # several uses of one weight
    dense: dict[Site, Dense]

    @property
    def width(self) -> int:
        """Of all factors and gradients together."""
        factors = sum(f.shape[2] * f.shape[3] for uses in self.outers.values() for use in uses for f in use.tensors)
        return factors + sum(d.size for d in self.dense.values())

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> "Rowwise":
        """Of some examples."""

        def some(values: Tensor) -> Tensor:
            return values[:, start:stop].to(dtype)

        outers = {site: [Outer(some(use.left), some(use.right)) for use in uses] for site, uses in self.outers.items()}
        return Rowwise(outers, {site: Dense(some(d.values)) for site, d in self.dense.items()})

    def gram(self, other: "Rowwise") -> Tensor:
        """K between these examples and those."""  # (c, n, n')
        total: Tensor | None = None
        for site, uses in self.outers.items():
            for mine in uses:
                for theirs in other.outers[site]:
                    total = _plus(total, mine.gram(theirs))
        for site, dense in self.dense.items():
            total = _plus(total, dense.dense(0, dense.size) @ other.dense[site].dense(0, dense.size).mT)
        assert total is not None
        return total


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more) if total.shape == more.shape else total + more


def joined(parts: list[dict[Site, Uses]], sites: list[SiteShape], ranks: Ranks, device: torch.device) -> Rowwise:
    """The gradients of all batches and all processes at some sites."""
    outers: dict[Site, list[Outer]] = {}
    dense: dict[Site, Dense] = {}
    same_left: dict[tuple[int, ...], list[list[Tensor]]] = {}  # sites of one use each, as a weight and its bias
    for shape, form in zip(sites, forms_of(parts, sites, ranks), strict=True):
        tensors = form.joined(held_at(parts, shape), device)
        if not form.by_factors:
            dense[shape.site] = Dense(ranks.rows(tensors[0], dim=1))
        elif len(tensors) == 2:
            same_left.setdefault(form.group, []).append(tensors)
        else:
            uses = zip(tensors[::2], tensors[1::2], strict=True)
            outers[shape.site] = [_of_all(left, right, ranks) for left, right in uses]
    for number, members in enumerate(same_left.values()):  # left (right, right', …)ᵀ
        right = torch.cat([right for _, right in members], dim=3)
        outers[("with one left factor", number)] = [_of_all(members[0][0], right, ranks)]
    return Rowwise(outers, dense)


def _of_all(left: Tensor, right: Tensor, ranks: Ranks) -> Outer:
    return Outer(_without_zeros(ranks.rows(left, dim=1)), _without_zeros(ranks.rows(right, dim=1)))


def _without_zeros(factor: Tensor) -> Tensor:
    """Columns that are zero for all examples, as those of a dead ReLU, add nothing to an inner product."""
    rows = factor.flatten(0, 2)
    unseen = (rows[:_GLIMPSE] == 0).all(dim=0).nonzero().flatten()
    zero = unseen[(rows[:, unseen] == 0).all(dim=0)]
    if not len(zero):
        return factor
    used = torch.ones_like(rows[0], dtype=torch.bool).index_fill_(0, zero, False)
    return factor[..., used]


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


def kept_rows(state: State, sites: list[SiteShape], ranks: Ranks) -> tuple[Rowwise, Tensor]:
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
    return joined(parts, sites, ranks, U.device), ranks.rows(U)


def drop_rows(state: State) -> None:
    """Forget what was kept."""
    for name in [name for name in state if name.startswith("kept ")]:
        del state[name]


def gram_energy(rows: Rowwise, U: Tensor, s: Tensor, c: int, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """H (c, ρ, ρ) and tr K (c,), float64, of this process's part; s holds the singular values of the kept directions.

    U (N, ρ) is that of all processes; blocks are shared out among them.
    """
    H, trace = energy_in(rows, U, c, ranks, U.dtype)
    if U.dtype != torch.float64 and _is_rough(H, trace, s, len(U), U.dtype, ranks):
        H, trace = energy_in(rows, U, c, ranks, torch.float64)
    return H, trace


def _is_rough(H: Tensor, trace: Tensor, s: Tensor, N: int, dtype: torch.dtype, ranks: Ranks) -> bool:
    """Whether an error of ε tr K / N in H_ii is much in 1 + H_ii/s_i² for some direction i."""
    energy, trace = H.diagonal(dim1=1, dim2=2).clone(), trace.clone()
    ranks.add(energy, trace)
    error = rounding(dtype, H.device) * trace.unsqueeze(1) / max(1, N)  # (c, 1)
    return bool((error > _ROUGH * (s.square() + energy[:, : len(s)].clamp_min(0))).any())


def energy_in(rows: Rowwise, U: Tensor, c: int, ranks: Ranks, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same, with K in one precision."""
    N, rho = U.shape
    block = _BLOCK if rows.width > _NARROW else _BLOCK // 2
    block //= dtype.itemsize // U.dtype.itemsize
    if ranks.size > 1:
        block = min(block, max(64, N // (4 * ranks.size)))
    S = torch.zeros(c, rho, rho, dtype=torch.float64, device=U.device)
    trace = torch.zeros(c, dtype=torch.float64, device=U.device)
    starts = list(range(0, N, block))
    for i in _evenly(starts, ranks):
        mine = rows.rows(i, i + block, dtype)
        KU: Tensor | None = None
        for j in range(i, N, block):
            K = mine.gram(mine if i == j else rows.rows(j, j + block, dtype))  # (c, n, n')
            if i == j:
                trace += K.diagonal(dim1=1, dim2=2).sum(dim=1, dtype=torch.float64)
                K = K / 2
            KU = _plus(KU, K @ U[j : j + block].to(dtype) if c > 1 else (K[0] @ U[j : j + block].to(dtype))[None])
        assert KU is not None
        S += U[i : i + block].mT.to(dtype) @ KU
    return S + S.mT, trace


def _evenly(starts: list[int], ranks: Ranks) -> list[int]:
    """This process's rows of blocks: long ones (early) and short ones (late) in turn."""
    mine = []
    for number, start in enumerate(starts):
        lap, seat = divmod(number, ranks.size)
        if (seat if lap % 2 == 0 else ranks.size - 1 - seat) == ranks.rank:
            mine.append(start)
    return mine
