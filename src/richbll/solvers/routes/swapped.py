"""Rows for columns: the factors of a weight change hands, and each process has all rows of its share of the columns.

To add C = Φ^mᵀU up over all processes takes ρ numbers for every element of a weight and every output. What the
gradients of a wide layer at few positions are made from may be far less: then these are sent, and nothing is added up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbll.network.capture import Site
from richbll.network.ranks import Alone, Ranks
from richbll.network.records import SiteShape
from richbll.network.structure import Gradient, Outer, Windows
from richbll.solvers.plan import Size, kept_bytes
from richbll.solvers.routes.explicit import kept_energy
from richbll.solvers.routes.ranges import held_ranges

Factors = Outer | Windows
Part = dict[Site, list[Gradient]]  # of a batch


@dataclass(frozen=True)
class Swap:
    """A weight whose factors change hands. Those of all batches have one form."""

    shape: SiteShape
    num_rows: list[list[int]]  # of every process's batches

    @property
    def _count(self) -> int:
        """What there is to share out: columns, or rows of a linear layer that is best cut in these."""
        return self.shape.columns or self.shape.widths[0]

    def _cut(self, rank: int) -> range:
        size = len(self.num_rows)
        return range(rank * self._count // size, (rank + 1) * self._count // size)

    def share(self, rank: int) -> SiteShape:
        """A process's share of the weight."""
        count, (height, width) = len(self._cut(rank)), self.shape.widths
        size = self.shape.size // self._count * count
        if self.shape.columns:
            return replace(self.shape, size=size, columns=count, widths=(height, width // self._count * count))
        return replace(self.shape, size=size, widths=(count, width))

    def of(self, gradient: Factors, rank: int) -> Factors:
        """The gradient by a process's share."""
        cut = self._cut(rank)
        if self.shape.columns or isinstance(gradient, Windows):
            return gradient.of_columns(cut.start, cut.stop)
        return Outer(gradient.left[..., cut.start : cut.stop], gradient.right)

    def begin(self, held: list[Factors], ranks: Ranks) -> Callable[[], list[Factors]]:
        """Begin to give the others their shares. What is returned waits for this process's, of all batches of all."""
        given: dict[int, list[Tensor]] = {}
        batches: dict[int, list[Factors]] = {}
        whole = [_made_of(one, *(tensor.contiguous() for tensor in one.tensors)) for one in held]
        for rank, counts in enumerate(self.num_rows):
            mine = [self.of(one, ranks.rank) for one in whole]
            if rank != ranks.rank:
                given[rank] = [tensor.contiguous() for one in whole for tensor in self.of(one, rank).tensors]
                like = mine[0]
                mine = [_made_of(like, *(t.new_empty(len(t), n, *t.shape[2:]) for t in like.tensors)) for n in counts]
            batches[rank] = mine
        wanted = {rank: [tensor for one in batches[rank] for tensor in one.tensors] for rank in given}
        wait = ranks.swap(given, wanted)

        def finished() -> list[Factors]:
            wait()
            return [one for some in batches.values() for one in some]

        return finished


def _made_of(like: Factors, first: Tensor, second: Tensor) -> Factors:
    """Other factors in the same place."""
    return Outer(first, second) if isinstance(like, Outer) else replace(like, x=first, g=second)


def swaps(parts: list[Part], shapes: list[SiteShape], size: Size, itemsize: int, ranks: Ranks) -> list[Swap]:
    """The weights whose factors are less to send than C, of so many bytes a number; the same in all processes.

    Then every process needs all of U too; where that is more than what is saved, nothing changes hands.
    """
    if ranks.size == 1:
        return []
    saved = {shape: _saved_bytes(shape, size, itemsize) for shape in shapes if _can_be_shared(shape, ranks.size)}
    cheap = [shape for shape in saved if saved[shape] > 0]
    told = ranks.told([_described(parts, shape.site) for shape in cheap])
    found = []
    for shape, said in zip(cheap, zip(*told, strict=True), strict=True):
        if None not in said and len({form for form, _ in said}) == 1:
            found.append(Swap(shape, [num_rows for _, num_rows in said]))
    of_U = itemsize * (size.num_rows or 0) * size.rank
    return found if sum(saved[swap.shape] for swap in found) > of_U else []


def _saved_bytes(shape: SiteShape, size: Size, itemsize: int) -> int:
    """What factors are less than C; none where two weights at a time would take more than a quarter of the memory."""
    factors = kept_bytes(shape, size.num_rows or 0, size.num_gradients)
    return itemsize * size.num_gradients * size.rank * shape.size - factors if factors < size.memory // 8 else 0


def _can_be_shared(shape: SiteShape, num_shares: int) -> bool:
    count = shape.columns or (shape.widths[0] if shape.kind == "linear" else 0)
    return shape.kind in ("linear", "convolution") and count >= num_shares


def _described(parts: list[Part], site: Site) -> tuple[str, list[int]] | None:
    """The form of all batches, in words, and their numbers of rows; None where there is not just one."""
    forms, num_rows = set(), []
    for part in parts:
        uses = part.get(site, [])
        if len(uses) != 1 or not isinstance(uses[0], Outer | Windows):
            return None
        forms.add(_form(uses[0]))
        num_rows.append(uses[0].tensors[0].shape[1])
    return (forms.pop(), num_rows) if len(forms) == 1 else None


def _form(gradient: Factors) -> str:
    tensors = [(str(t.dtype), len(t), *t.shape[2:]) for t in gradient.tensors]
    how = None
    if isinstance(gradient, Windows):
        how = (gradient.kernel, gradient.stride, gradient.dilation, gradient.groups, gradient.padding)
    return str((type(gradient).__name__, tensors, how))


class Swapping:
    """All of them, one after another: the first begins at once, the others each while the one before is worked on."""

    def __init__(self, parts: list[Part], swaps: list[Swap], U: Tensor, ranks: Ranks) -> None:
        self._parts, self._swaps, self._ranks = parts, swaps, ranks
        self._num_rows = [sum(counts) for counts in swaps[0].num_rows]  # of every process
        self._U = U.new_empty(sum(self._num_rows), U.shape[1])
        self._wait_for_U = self._begun_rows(U)
        self._next = self._begun(0)

    @property
    def sites(self) -> set[Site]:
        """What changes hands."""
        return {swap.shape.site for swap in self._swaps}

    def own_rows(self, values: Tensor) -> Tensor:
        """Of the values (c, n) for all processes' rows."""
        return torch.split(values, self._num_rows, dim=1)[self._ranks.rank]

    def _begun_rows(self, U: Tensor) -> Callable[[], None]:
        blocks = dict(enumerate(torch.split(self._U, self._num_rows)))
        own = blocks.pop(self._ranks.rank)
        own.copy_(U)
        return self._ranks.swap({rank: [own] for rank in blocks}, {rank: [block] for rank, block in blocks.items()})

    def _begun(self, number: int) -> Callable[[], list[Factors]]:
        if number >= len(self._swaps):
            return lambda: []
        uses = (part[self._swaps[number].shape.site][0] for part in self._parts)
        return self._swaps[number].begin([one for one in uses if isinstance(one, Outer | Windows)], self._ranks)

    def energy(self, c: int, most: int, most_bytes: int) -> tuple[Tensor, Tensor]:
        """This process's part of H (c, ρ, ρ) float64, and of the squared norms (c, n) of all processes' rows.

        C is made of at most so many elements at a time, and gradients of so many bytes. It can be asked for once.
        """
        H, squared, U = torch.zeros(()), torch.zeros(()), self._U
        self._wait_for_U()
        del self._U, self._wait_for_U  # not to be held while others are worked on
        for number, swap in enumerate(self._swaps):
            held, self._next = self._next(), self._begun(number + 1)
            share = swap.share(self._ranks.rank)
            everything: list[Part] = [{share.site: [one]} for one in held]
            ranges = held_ranges([share], c * U.shape[1], most)
            more, norms = kept_energy(everything, ranges, U, c, Alone(), most_bytes)
            H, squared = more + H.to(more), norms + squared.to(norms)
            del held, everything  # before the next one comes
        return H, squared
