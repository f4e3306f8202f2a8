"""Draws of logits z = f + √v ε in parts, and means over them: memory does not grow with draws, examples or classes.

The numbers ε of an example follow from its own logits, so it is answered alike alone and in any batch (but for the few
whose logits are at an edge of the rounding), and what was calibrated in one holds in another. There are up to 256 sets
of draws, and a hash of the rounded logits chooses one: with one set for all examples, the same classes would be
favoured everywhere.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

from richbll.rng import child_generator

_MOST_ELEMENTS = 2**18  # at a time: 2 MiB in float64, which stays in the cache
_MOST_KEPT = 2**20  # numbers of all sets together
_MOST_SETS = 256
_PER_UNIT = 64  # steps of a logit that the hash tells apart; rounding in other batches is much finer
Part = tuple[slice, Tensor]  # some rows, and a tensor (k, rows, …) with k draws for each of them


def drawn(f: Tensor, spread: Tensor, num_samples: int, seed: int) -> Iterator[Part]:
    """z = f + spread ε, for f (n, C) and spread (n, C)."""
    for rows, eps in normal_numbers(f, num_samples, seed):
        yield rows, torch.addcmul(f[rows], spread[rows], eps)  # (k, rows, C)


def normal_numbers(f: Tensor, num_samples: int, seed: int) -> Iterator[Part]:
    """Standard normal numbers (k, rows, C) for logits f (n, C), in their dtype; where C is large, (k, 1, C)."""
    n, C = f.shape
    num_sets = min(_MOST_SETS, _MOST_KEPT // max(num_samples * C, 1))
    if num_sets == 0:  # one set, which is not kept
        for rows, draws in _parts(num_samples, n, C):
            yield rows, torch.stack([_one_draw(number, C, seed) for number in draws]).unsqueeze(1).to(f)
        return
    sets, chosen = _sets(num_samples, num_sets, C, seed, f.dtype, f.device), _set_of(f, num_sets)
    for rows, draws in _parts(num_samples, n, C):
        yield rows, sets[draws.start : draws.stop, chosen[rows]]


@lru_cache(maxsize=4)
@torch.inference_mode(False)
def _sets(num_samples: int, num_sets: int, C: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = child_generator(seed, "logits")
    numbers = torch.randn(num_samples, num_sets, C, generator=generator, dtype=torch.float64, device="cpu")
    return numbers.to(device, dtype)


@torch.inference_mode(False)
def _one_draw(number: int, C: int, seed: int) -> Tensor:
    return torch.randn(C, generator=child_generator(seed, "logits", number), dtype=torch.float64, device="cpu")


def _set_of(f: Tensor, num_sets: int) -> Tensor:
    """Which set each row of f (n, C) takes, by a hash of its rounded least, largest and mean value."""  # (n,)
    f = f.detach().to(torch.float32)
    seen = torch.stack([f.amin(dim=1), f.amax(dim=1), f.mean(dim=1)], dim=1)  # few, so that few are at an edge
    steps = (_PER_UNIT * seen).nan_to_num().clamp(-(2.0**40), 2.0**40).round().long()
    odd = torch.tensor([1, 3, 5], device=f.device)
    mixed = (steps * (odd * 0x9E3779B97F4A7C1)).sum(dim=1)  # whole numbers wrap around
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return torch.remainder(mixed ^ (mixed >> 32), num_sets)


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


def _parts(num_samples: int, n: int, C: int) -> Iterator[tuple[slice, range]]:
    """Rows and draws: some draws of all rows, or, where these are too many, one draw of some rows."""
    most_draws = _MOST_ELEMENTS // max(n * C, 1)
    num_rows = n if most_draws else max(1, _MOST_ELEMENTS // C)
    for draw in range(0, num_samples, max(most_draws, 1)):
        draws = range(draw, min(draw + max(most_draws, 1), num_samples))
        for start in range(0, max(n, 1), max(num_rows, 1)):
            yield slice(start, min(start + num_rows, n)), draws
