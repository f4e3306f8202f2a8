"""S x = q^(-1/2) Rᵀ x with a dense R (p, q) of independent entries, drawn in blocks of rows when they are needed.

A block holds at most 2⁹ rows and max(2¹⁶, q) numbers, and has its own generator. Blocks are multiplied together up to
2¹⁹ numbers, and the last 2²² numbers are kept for the next call: about 20 MB in all (float32, q ≤ 2¹⁹), however long
the gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from richbll.products import add_to
from richbll.rng import child_generator
from richbll.sketches.sketch import check_flat, outer_in_slices, working_dtype

_ROWS = 2**9  # drawn at once, at most: a bias is short
_DRAWN, _MULTIPLIED, _KEPT = 2**16, 2**19, 2**22  # numbers at once


class Dense:
    """A dense sketch. `draw(generator, rows, q)` gives entries of mean 0 and variance 1, (rows, q)."""

    def __init__(self, kind: str, size: int, seed: int, draw: Callable[[torch.Generator, int, int], Tensor]) -> None:
        self.size = size
        self._kind, self._seed, self._draw = kind, seed, draw
        self._rows = max(
            1, min(_ROWS, _DRAWN // size)
        )  # of a block: set by q alone, so that cuts in pieces change nothing
        self._together = max(1, _MULTIPLIED // (self._rows * size))
        self._most_kept = max(1, _KEPT // (self._rows * size))
        self._kept: dict[tuple[str, int], Tensor] = {}

    def flat(self, address: str, values: Tensor, start: int = 0) -> Tensor:
        """q^(-1/2) Σ over blocks b of values_b R_b."""
        n, p = check_flat(values, start)
        dtype = working_dtype(values)
        stop, end = start + p, -(-(start + p) // self._rows)
        total = values.new_zeros(n, self.size, dtype=dtype)
        for first in range(start // self._rows, end if n and p else 0, self._together):
            numbers = range(first, min(first + self._together, end))
            R = torch.cat([self._block(address, number) for number in numbers])
            here = first * self._rows  # where R begins in the tensor
            low, high = max(start, here), min(stop, here + len(R))
            R = R[low - here : high - here].to(values.device, dtype)  # (high - low, q)
            add_to(total, values[:, low - start : high - start].to(dtype), R)
        return total.mul_(self.size**-0.5)

    def outer(self, address: str, g: Tensor, a: Tensor) -> Tensor:
        """The flat sketch of Σ_t g_t a_tᵀ."""
        return outer_in_slices(self, address, g, a)

    def _block(self, address: str, number: int) -> Tensor:
        key = (address, number)
        block = self._kept.pop(key, None)
        if block is None:
            block = self._draw(child_generator(self._seed, "sketch", self._kind, *key), self._rows, self.size)
        self._kept[key] = block  # the newest is the last
        if len(self._kept) > self._most_kept:
            del self._kept[next(iter(self._kept))]
        return block
