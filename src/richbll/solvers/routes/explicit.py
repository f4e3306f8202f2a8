"""C = Φ^mᵀU, a range of parameters at a time, and H = CᵀC.

From kept gradients a range is made for all examples at once, squared, and forgotten: C is never there as a whole. When
batches come one by one, C has to wait for the last of them.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbll.linalg import from_lower
from richbll.network.capture import Site
from richbll.network.ranks import Ranks
from richbll.network.records import SiteShape
from richbll.network.rows import Rows
from richbll.network.structure import MANY_POSITIONS, Dense, Gradient, Outer, Piece, Windows, summed
from richbll.precision import Sum, summing_dtype
from richbll.products import add_to, product
from richbll.room import Room

_SPARSE = 64  # an embedding with more rows than so many times its positions is added up token by token
_SUMMED = 2**21  # elements at a time where the gradients of several uses are added up
_SQUARED = 64  # rows of C Cᵀ at a time: what is above them is not computed
_HELD = 2**20  # elements of C at a time: it then stays in fast memory while all batches are added
_ROWS = 16  # of a weight, at least, where it acts at several positions: its other factor is read anew for every range
_CHANNELS = 8  # of a convolution's input, at least: products with fewer columns are slow


@dataclass(frozen=True)
class Range:
    """Elements start … stop of a site; by column, those of weight[:, start / unit : stop / unit].

    C does not care about the order of parameters. Some rows of a convolution's weight need windows of its whole input,
    anew for every range; some channels of the input need the windows of these channels.
    """

    shape: SiteShape
    start: int
    stop: int
    by_column: bool = False

    @property
    def unit(self) -> int:
        """Elements of a row, where it is best cut; by column of a column, and it is cut nowhere else."""
        return max(1, self.shape.size // self.shape.columns if self.by_column else self.shape.widths[1])

    def cut(self, most: int) -> list["Range"]:
        """In ranges of at most about `most` elements, of whole units where that is possible."""
        step = max(1, most // self.unit) * self.unit if self.unit <= most else max(1, most)
        starts = range(self.start, self.stop, step)
        return [replace(self, start=start, stop=min(start + step, self.stop)) for start in starts]

    def evenly(self, about: int, most: int) -> list["Range"]:
        """In ranges of about so many elements; the last may have fewer."""
        size = self.stop - self.start
        count = max(1, round(size / max(1, about)))
        return self.cut(min(most, -(-size // (count * self.unit)) * self.unit))

    def of(self, uses: list[Gradient]) -> tuple[list[Gradient], int, int]:
        """Gradients, and which of their elements these are. By column a weight is used once."""
        if not self.by_column:
            return uses, self.start, self.stop
        (one,) = uses
        first, last = self.start // self.unit, self.stop // self.unit
        if isinstance(one, Outer | Windows):
            return [one.of_columns(first, last)], 0, self.stop - self.start
        whole = one.dense(0, one.size)  # no rule held for these examples
        weight = whole.view(*whole.shape[:2], self.shape.widths[0], self.shape.columns, -1)
        return [Dense(weight[:, :, :, first:last].flatten(2))], 0, self.stop - self.start


def ranges_of(shapes: list[SiteShape], most: int) -> list[Range]:
    """Sites as ranges of at most about `most` elements."""
    return [part for shape in shapes for part in Range(shape, 0, shape.size).cut(most)]


def held_ranges(shapes: list[SiteShape], directions: int, most: int) -> list[Range]:
    """The same for kept gradients; C has so many numbers (c ρ) for every element."""
    return [part for shape in shapes for part in _held(shape, _HELD // directions, most)]


def _held(shape: SiteShape, about: int, most: int) -> list[Range]:
    whole = Range(shape, 0, shape.size, by_column=shape.columns > 0)
    if whole.unit > most:  # a part of a column is no range
        whole = replace(whole, by_column=False)
    if shape.kind == "linear":
        return whole.evenly(max(whole.unit * (_ROWS if shape.positions > 1 else 1), about), most)
    if whole.by_column:
        about *= 2 if shape.positions >= MANY_POSITIONS else 1  # gradients are then convolutions, best of many channels
        return whole.evenly(max(_CHANNELS * whole.unit, about), most)
    return whole.cut(most)  # windows are unfolded anew for every range, so there are as few as fit


def blocks_of_ranges(shapes: list[SiteShape], most: int) -> list[list[Range]]:
    """Ranges, gathered into blocks of at most `most` elements."""
    blocks: list[list[Range]] = []
    room = 0
    for part in ranges_of(shapes, most):
        size = part.stop - part.start
        if not blocks or size > room:
            blocks.append([])
            room = most
        blocks[-1].append(part)
        room -= size
    return blocks


def add_product(
    C: Tensor, norms: Sum, uses: list[Gradient], part: Range, U: Tensor, room: Room, fresh: bool = False
) -> None:
    """C (c, ρ, elements) += UᵀΦ^m of some examples over a range, and norms (c, n) their squared norms over it.

    Gradients are made in the room. A fresh C holds nothing yet, not even zeros: to fill a large one with them costs
    some per cent of a fit.
    """
    uses, start, stop = part.of(uses)
    (first, *others) = uses
    num_rows, num_elements = len(U), C.shape[2]
    sparse = not others and is_sparse(part.shape) and isinstance(first, Rows)
    in_place = (
        len(C) == 1 and summing_dtype(C.device) == torch.float64
    )  # MPS may lose a product into a part of a tensor
    if fresh and (sparse or not in_place):
        C.zero_()
    if sparse and isinstance(first, Rows):
        C += first.product(U, start, stop).mT
        if start == 0:
            norms.add(first.squared_norms())  # they are of all of it
        return
    # a small fit has a thousand pieces: what is taken whole is not cut
    for rows, elements, J in first.pieces(start, stop, room) if not others else _summed_pieces(uses, part):
        J, all_rows = J.to(U.dtype), rows.stop - rows.start == num_rows
        u = U if all_rows else U[rows]
        target = C if elements.stop - elements.start == num_elements else C[:, :, elements]
        if in_place:
            add_to(target[0], u.mT, J[0], fresh=fresh and rows.start == 0)
        else:
            target += u.mT @ J
        norms.add(torch.linalg.vector_norm(J, dim=2).square(), at=... if all_rows else (slice(None), rows))


def _summed_pieces(uses: list[Gradient], part: Range) -> Iterator[Piece]:
    """The sum over several uses of a parameter."""
    n = uses[0].tensors[-1].shape[1]
    for small in part.cut(max(1, _SUMMED // max(1, n))):
        J = summed(uses, small.start, small.stop)
        yield slice(0, n), slice(small.start - part.start, small.stop - part.start), J


def is_sparse(shape: SiteShape) -> bool:
    """Whether few of the rows of an embedding are touched by an example."""
    return shape.kind == "embedding" and shape.widths[0] > _SPARSE * shape.positions


def kept_energy(
    parts: list[dict[Site, list[Gradient]]], ranges: list[Range], U: list[Tensor], c: int, ranks: Ranks
) -> tuple[Tensor, list[Tensor]]:
    """H (c, ρ, ρ) float64 from kept gradients, and the squared norms (c, n) of every part's examples.

    The ranges are the same in all processes. Of as many as there are processes, each of them squares one, and while
    these are exchanged the next ones are made.
    """
    rho, working, device = U[0].shape[1], U[0].dtype, U[0].device
    H = Sum((c, rho, rho), device)
    norms = [Sum((c, len(u)), device) for u in U]
    exchanging: deque[Callable[[], Tensor]] = deque()
    rounds, room = _rounds(_bundled(ranges), ranks.size), Room()
    sizes = [[c * rho * _num_elements(bundle) for bundle in some] for some in rounds]
    rooms = [
        torch.empty(max(map(sum, sizes), default=0), dtype=working, device=device) for _ in range(min(2, ranks.size))
    ]
    for number, (some, pieces) in enumerate(zip(rounds, sizes, strict=True)):
        whole = rooms[number % len(rooms)][: sum(pieces)]
        if not parts[0]:  # no rows
            whole.zero_()
        for bundle, piece in zip(some, torch.split(whole, pieces), strict=True):
            of_ranges = torch.split(piece.view(c, rho, -1), [_num_elements([part]) for part in bundle], dim=2)
            for part, C in zip(bundle, of_ranges, strict=True):
                for k, (held, u) in enumerate(zip(parts, U, strict=True)):
                    if held:
                        add_product(C, norms[k], held[part.shape.site], part, u, room, fresh=k == 0)
        exchanging.append(ranks.share(whole, pieces + [0] * (ranks.size - len(pieces))))
        if len(exchanging) == len(rooms):
            add_square(H, exchanging.popleft()(), c, rho)
    for last in exchanging:
        add_square(H, last(), c, rho)
    return from_lower(H.value()), [squared.value() for squared in norms]


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
