"""Draws of logits z = f + √v ε in parts, and means over them: memory does not grow with draws, examples or classes.

The numbers ε are those of one draw of shape (s, n, C), in its order, however it is cut.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from richbll.rng import child_generator

_MOST_ELEMENTS = 2**18  # at a time: 2 MiB in float64, which stays in the cache
Part = tuple[slice, Tensor]  # some rows, and a tensor (k, rows, …) with k draws for each of them


def drawn(f: Tensor, spread: Tensor, num_samples: int, seed: int) -> Iterator[Part]:
    """z = f + spread ε, for f (n, C) and spread (n, C)."""
    for rows, eps in normal_numbers(num_samples, f.shape, seed):
        yield rows, torch.addcmul(f[rows], spread[rows], eps.to(f))  # (k, rows, C)


def normal_numbers(num_samples: int, shape: Sequence[int], seed: int) -> Iterator[Part]:
    """Standard normal numbers (k, rows, C) for logits of shape (n, C), float64 on the CPU; others for every example.

    Common ones would favour the same classes everywhere.
    """
    n, C = shape
    blocks = _blocks(num_samples * n * C, child_generator(seed, "logits"))
    rest = next(blocks)
    for rows, k in _parts(num_samples, n, C):
        num_rows = rows.stop - rows.start
        size = k * num_rows * C
        while len(rest) < size:
            rest = torch.cat([rest, next(blocks)])
        yield rows, rest[:size].view(k, num_rows, C)
        rest = rest[size:]


def log_mean_exp(parts: Iterable[Part], num_samples: int) -> Tensor:
    """log mean exp over all draws of parts (k, rows, …), by a running logsumexp."""  # (n, …)
    totals: dict[int, Tensor] = {}
    for rows, log_p in parts:
        part = log_p[0] if len(log_p) == 1 else torch.logsumexp(log_p, dim=0)
        totals[rows.start] = torch.logaddexp(totals[rows.start], part) if rows.start in totals else part
    return torch.cat(list(totals.values())) - math.log(num_samples)


def mean(parts: Iterable[Part], num_samples: int) -> Tensor:
    """The mean over all draws of parts (k, rows, …)."""  # (n, …)
    totals: dict[int, Tensor] = {}
    for rows, values in parts:
        part = values.sum(dim=0)
        totals[rows.start] = totals[rows.start] + part if rows.start in totals else part
    return torch.cat(list(totals.values())) / num_samples


def by_rows(function: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """`function` of tensors (n, C), a bounded number of rows at a time."""
    n, C = given[0].shape
    rows = max(1, _MOST_ELEMENTS // C)
    if n <= rows:
        return function(*given)
    return torch.cat([function(*part) for part in zip(*(torch.split(one, rows) for one in given), strict=True)])


def _parts(num_samples: int, n: int, C: int) -> Iterator[tuple[slice, int]]:
    """Rows and a number of draws: some draws of all rows, or, where these are too many, one draw of some rows."""
    most_draws = _MOST_ELEMENTS // max(n * C, 1)
    num_rows = n if most_draws else max(1, _MOST_ELEMENTS // C)
    for draw in range(0, num_samples, max(most_draws, 1)):
        k = min(max(most_draws, 1), num_samples - draw)
        for start in range(0, max(n, 1), max(num_rows, 1)):
            yield slice(start, min(start + num_rows, n)), k


def _blocks(count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """`torch.randn(count)` block by block.

    torch makes normal numbers sixteen at a time, and the last sixteen anew where the count is no multiple of 16: so
    blocks are multiples of 16, and the last is not short.
    """
    while count >= 2 * _MOST_ELEMENTS:
        yield torch.randn(_MOST_ELEMENTS, generator=generator, dtype=torch.float64)
        count -= _MOST_ELEMENTS
    yield torch.randn(count, generator=generator, dtype=torch.float64)
