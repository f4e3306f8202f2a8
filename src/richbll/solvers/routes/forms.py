"""How the gradients at a site are held, so that those of all batches and all processes can be joined.

Sequences may be longer in one batch than in another: positions that are filled up with zeros add nothing to an inner
product. Rules may have failed in one process only: then all of them take dense gradients. A process may have no rows.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from richbll.network.capture import Site
from richbll.network.ranks import Ranks
from richbll.network.records import SiteShape
from richbll.network.structure import Gradient, Outer, place, summed

Uses = list[Gradient]  # of one parameter by one batch


@dataclass(frozen=True)
class Form:
    """The tensors of a site, without rows: (c, 0, p) of a dense gradient, or pairs of factors (c or 1, 0, T, d)."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    group: tuple[int, ...]  # sites of one group have the same left factor

    @property
    def by_factors(self) -> bool:
        """Whether factors are held, a left and a right one for each use."""
        return len(self.shapes[0]) == 4

    def parts(self, held: list[Uses], device: torch.device, without_left: bool = False) -> list[list[Tensor]]:
        """Of each tensor its rows, batch by batch; of a pair of factors perhaps the right one only."""
        first = 1 if without_left else 0
        kinds = zip(self.shapes[first:], self.dtypes[first:], strict=True)
        parts = [[torch.zeros(shape, dtype=getattr(torch, name), device=device)] for shape, name in kinds]
        for uses in held:
            if self.by_factors:
                tensors = [tensor for use in uses for tensor in use.tensors][first:]
            else:
                tensors = [summed(uses, 0, self.shapes[0][2])]
            for number, tensor in enumerate(tensors):
                longer = self.shapes[first + number][2] - tensor.shape[2]
                parts[number].append(pad(tensor, (0, 0, 0, longer)) if longer else tensor)
        return [some[1:] or some for some in parts]


def side_by_side(columns: list[list[Tensor]]) -> Tensor:
    """All rows of all columns (c, N, T, Σ d); of one column all rows."""
    if len(columns) == 1:
        return columns[0][0] if len(columns[0]) == 1 else torch.cat(columns[0], dim=1)
    first, widths = columns[0], [parts[0].shape[3] for parts in columns]
    dtype = reduce(torch.promote_types, (part.dtype for parts in columns for part in parts))
    shape = (len(first[0]), sum(part.shape[1] for part in first), first[0].shape[2], sum(widths))
    whole = first[0].new_empty(shape, dtype=dtype)
    for parts, column in zip(columns, torch.split(whole, widths, dim=3), strict=True):  # each is copied once
        for part, rows in zip(parts, torch.split(column, [part.shape[1] for part in parts], dim=1), strict=True):
            assert rows.shape == part.shape  # nothing is spread
            rows.copy_(part)
    return whole


def forms_of(
    parts: list[dict[Site, Uses]], sites: list[SiteShape], formed: Collection[Site], ranks: Ranks
) -> list[Form]:
    """Of every site, the same in all processes; some are to be formed, whatever factors they have."""
    met: dict[tuple[tuple[int, ...], ...], int] = {}
    mine = [_described(held_at(parts, shape), shape, met, shape.site in formed) for shape in sites]
    return [_common([own for own in found if own is not None]) for found in zip(*ranks.told(mine), strict=True)]


def held_at(parts: list[dict[Site, Uses]], shape: SiteShape) -> list[Uses]:
    """What there is at a site, batch by batch."""
    return [part[shape.site] for part in parts if part.get(shape.site)]


def _described(
    held: list[Uses], shape: SiteShape, met: dict[tuple[tuple[int, ...], ...], int], is_formed: bool
) -> dict[str, Any] | None:
    """What this process holds, as JSON takes it; None without rows."""
    if not held:
        return None
    tensors = [tensor for use in held[0] for tensor in use.tensors]
    by_factors = not is_formed and all(isinstance(use, Outer) for uses in held for use in uses)
    if by_factors:  # without forming any of it
        c, dtype = max(map(len, tensors)), reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)
    else:
        c, dtype = len(values := summed(held[0], 0, 1)), values.dtype
    found: dict[str, Any] = {"dense": [c, 0, shape.size], "dtype": _name(dtype), "factors": []}
    if by_factors:
        key = tuple(place(use.tensors[0]) for uses in held for use in uses)
        found["factors"] = [[len(tensor), 0, tensor.shape[3], _name(tensor.dtype)] for tensor in tensors]
        found["longest"] = [max(use.tensors[0].shape[2] for use in uses) for uses in zip(*held, strict=True)]
        found["group"] = met.setdefault(key, len(met))
    return found


def _common(found: list[dict[str, Any]]) -> Form:
    """By factors where these differ in nothing but their number of positions."""
    first = found[0]
    if not first["factors"] or any(own["factors"] != first["factors"] for own in found):
        return Form((tuple(first["dense"]),), (first["dtype"],), ())
    longest = [max(lengths) for lengths in zip(*(own["longest"] for own in found), strict=True)]
    shapes = [(c, n, longest[number // 2], d) for number, (c, n, d, _) in enumerate(first["factors"])]
    return Form(tuple(shapes), tuple(name for *_, name in first["factors"]), tuple(own["group"] for own in found))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
