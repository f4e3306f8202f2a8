"""C = Φ^mᵀU, a range of parameters at a time, and H = CᵀC.

From kept gradients a range is made for all examples at once, squared, and forgotten: C is never there as a whole. When
batches come one by one, C has to wait for the last of them.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from richbll.linalg import from_lower
from richbll.network.capture import Site
from richbll.network.ranks import Ranks
from richbll.network.records import SiteShape
from richbll.network.rows import Rows
from richbll.network.structure import Gradient
from richbll.precision import Sum, summing_dtype
from richbll.products import add_to, product
from richbll.room import Room
from richbll.solvers.routes.ranges import Range
from richbll.solvers.routes.stacked import STACKED, neighbours, stacked

_SPARSE = 64  # an embedding with more rows than so many times its positions is added up token by token
_SQUARED = 64  # rows of C Cᵀ at a time: what is above them is not computed


def add_product(
    C: Tensor,
    norms: Sum,
    batches: Sequence[list[Gradient]],
    part: Range,
    U: Tensor,
    room: Room,
    fresh: bool = False,
    most_bytes: int = 0,
) -> None:
    """C (c, ρ, elements) += UᵀΦ^m of some batches over a range, and norms (c, n) their squared norms over it.

    Gradients are made in the room, and those of several batches put together there, up to so many bytes. A fresh C
    holds nothing yet, not even zeros: to fill a large one with them costs some per cent of a fit.
    """
    sparse = is_sparse(part.shape)
    in_place = (
        len(C) == 1 and summing_dtype(C.device) == torch.float64
    )  # MPS may lose a product into a part of a tensor
    if fresh and (sparse or not in_place):
        C.zero_()
        fresh = False
    most_rows = 0 if sparse else most_bytes // max(1, C[:, 0].nbytes)
    for all_rows, some in neighbours(batches, most_rows):
        (first, *others) = some[0]
        if sparse and not others and isinstance(first, Rows):
            C += first.product(U[all_rows], part.start, part.stop).mT
            if part.start == 0:
                norms.add(first.squared_norms(), at=(slice(None), all_rows))  # they are of all of it
            continue
        for rows, elements, J in stacked(some, all_rows, part, len(C), U, room):
            # a small fit has a thousand pieces: what is taken whole is not cut
            is_all = rows.stop - rows.start == len(U)
            u = U if is_all else U[rows]
            target = C if elements.stop - elements.start == C.shape[2] else C[:, :, elements]
            if in_place:
                add_to(target[0], u.mT, J[0], fresh=fresh and rows.start == 0)
            else:
                target += u.mT @ J
            norms.add(torch.linalg.vector_norm(J, dim=2).square(), at=... if is_all else (slice(None), rows))


def is_sparse(shape: SiteShape) -> bool:
    """Whether few of the rows of an embedding are touched by an example."""
    return shape.kind == "embedding" and shape.widths[0] > _SPARSE * shape.positions


def kept_energy(
    parts: list[dict[Site, list[Gradient]]],
    ranges: list[Range],
    U: Tensor,
    c: int,
    ranks: Ranks,
    most_bytes: int = STACKED,
) -> tuple[Tensor, Tensor]:
    """H (c, ρ, ρ) float64 from kept gradients of some batches, and the squared norms (c, n) of all their rows.

    Gradients of several batches are put together up to so many bytes, beside which C is held.

    The ranges are the same in all processes. Of as many as there are processes, each of them squares one, and while
    these are exchanged the next ones are made.
    """
    rho, device = U.shape[1], U.device
    H, norms = Sum((c, rho, rho), device), Sum((c, len(U)), device)
    exchanging: deque[Callable[[], Tensor]] = deque()
    rounds, room = _rounds(_bundled(ranges), ranks.size), Room()
    sizes = [[c * rho * _num_elements(bundle) for bundle in some] for some in rounds]
    rooms = [
        torch.empty(max(map(sum, sizes), default=0), dtype=U.dtype, device=device) for _ in range(min(2, ranks.size))
    ]
    for number, (some, pieces) in enumerate(zip(rounds, sizes, strict=True)):
        whole = rooms[number % len(rooms)][: sum(pieces)]
        if not parts[0]:  # no rows
            whole.zero_()
        for bundle, piece in zip(some, torch.split(whole, pieces), strict=True):
            of_ranges = torch.split(piece.view(c, rho, -1), [_num_elements([part]) for part in bundle], dim=2)
            for part, C in zip(bundle, of_ranges, strict=True):
                if parts[0]:
                    held = [batch[part.shape.site] for batch in parts]
                    add_product(C, norms, held, part, U, room, fresh=True, most_bytes=min(STACKED, most_bytes))
        exchanging.append(ranks.share(whole, pieces + [0] * (ranks.size - len(pieces))))
        if len(exchanging) == len(rooms):
            add_square(H, exchanging.popleft()(), c, rho)
    for last in exchanging:
        add_square(H, last(), c, rho)
    return from_lower(H.value()), norms.value()


def add_square(H: Sum, C: Tensor, c: int, rho: int) -> None:
    """The lower triangle of H (c, ρ, ρ) += C Cᵀ for C (c, ρ, elements), flat; there may be no elements."""
    if len(C):
        wide = C.view(c, rho, -1)
        for start in range(0, rho, _SQUARED):
            stop = start + _SQUARED
            H.add(product(wide[:, start:stop], wide[:, :stop].mT), at=(slice(None), slice(start, stop), slice(stop)))


def _num_elements(bundle: list[Range]) -> int:
    return sum(part.stop - part.start for part in bundle)


def _bundled(ranges: list[Range]) -> list[list[Range]]:
    """Neighbours together, up to the size of the largest: each square and each exchange has a cost of its own."""
    most = max((part.stop - part.start for part in ranges), default=0)
    bundles: list[list[Range]] = []
    for part in ranges:
        if not bundles or _num_elements([*bundles[-1], part]) > most:
            bundles.append([])
        bundles[-1].append(part)
    return bundles


def _rounds(bundles: list[list[Range]], size: int) -> list[list[list[Range]]]:
    """So many at a time; for several processes those of about one size together."""
    if size > 1:
        bundles = sorted(bundles, key=_num_elements, reverse=True)
    return [bundles[start : start + size] for start in range(0, len(bundles), size)]
