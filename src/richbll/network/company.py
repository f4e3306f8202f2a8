"""Some examples of a batch once more, without the others: it shows whether they are independent, and whose a row is."""

import torch
from torch import Tensor

from richbll.network.outputs import coarsest, rounding
from richbll.rng import child_generator

_FEWEST, _MOST = 4, 8  # examples of a batch


def companies(num_rows: int, everybody: bool) -> list[Tensor]:
    """A few examples, the ends of the batch among them, or everybody: in two halves, or few ones by themselves, twice.

    Everybody, where a few say little of the rest: under a mask, and where the positions of all examples are rows of one
    matrix, in which some may have more rows than others. The order is not the batch's, nor its reverse, and goes up and
    down: else a model that sorts examples, or turns them round, would do the same to both.
    """
    last = num_rows - 1
    if num_rows <= _FEWEST and everybody:
        return [torch.tensor([row, row]) for row in range(num_rows)]
    if num_rows <= _FEWEST:
        return [torch.tensor([last, *range(num_rows)])]  # one of them twice
    generator = child_generator(0, "company", num_rows)
    if everybody:
        order = torch.randperm(num_rows, generator=generator)
        return [half.sort().values.roll(1) for half in (order[: num_rows // 2], order[num_rows // 2 :])]
    count = max(_FEWEST, min(_MOST, num_rows // 16))
    between = 1 + torch.randperm(num_rows - 2, generator=generator)[: count - 2]
    return [torch.cat([torch.tensor([last, 0]), between])]


def same_rows(pairs: list[tuple[Tensor, Tensor]], precision: torch.dtype) -> bool:
    """Outputs (n, …) of calls, for the same examples, that differ by rounding only.

    As `same_outputs`: relative to how much they vary over examples, plus the rounding of what all have in common.
    """
    for a, b in pairs:
        if a.shape != b.shape:
            return False
        if a.numel() == 0:
            continue
        eps = rounding(coarsest(a.dtype, b.dtype, precision), a.device)
        gap, scale, spread = torch.stack([v.abs().max() for v in (a - b, b, b - b.mean(dim=0))]).tolist()
        if not gap <= min(eps**0.5 * scale, eps**0.5 * spread + 256 * eps * scale):
            return False
    return True
