"""Some examples of a batch once more, without the others: it shows whether they are independent, and whose a row is."""

import torch
from torch import Tensor

from richbll.network.outputs import coarsest

_FEWEST, _MOST = 4, 8  # examples of a batch


def companies(num_rows: int, everybody: bool) -> list[Tensor]:
    """A few examples from all over the batch, or everybody in two halves.

    Everybody, where a few say little of the rest: under a mask, and where the positions of all examples are rows of one
    matrix, in which some may have more rows than others.
    """
    if num_rows <= 2:
        return [torch.tensor([0, num_rows - 1, 0])]
    if everybody:
        halves = [torch.arange(num_rows)[first::2] for first in (0, 1)]
        return [half if len(half) > 1 else half.repeat(2) for half in halves]  # one alone can be a case of its own
    count = min(num_rows // 2, max(_FEWEST, min(_MOST, num_rows // 16)))
    return [torch.linspace(0, num_rows - 1, max(2, count)).round().long()]


def same_rows(pairs: list[tuple[Tensor, Tensor]], precision: torch.dtype) -> bool:
    """Outputs (n, …) of calls, for the same examples, that differ by rounding only.

    As `same_outputs`: relative to how much they vary over examples, plus the rounding of what all have in common.
    """
    for a, b in pairs:
        if a.shape != b.shape:
            return False
        if a.numel() == 0:
            continue
        eps = torch.finfo(coarsest(a.dtype, b.dtype, precision)).eps
        gap, scale, spread = torch.stack([v.abs().max() for v in (a - b, b, b - b.mean(dim=0))]).tolist()
        if not gap <= min(eps**0.5 * scale, eps**0.5 * spread + 256 * eps * scale):
            return False
    return True
