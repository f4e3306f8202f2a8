"""What a sketch is, the checks at its door, and the sketch of a weight's gradient through that of its slices.

A sketch S is a random linear map into q numbers with E⟨Sx, Sy⟩ = ⟨x, y⟩. Every tensor has its own map, named by an
address. Maps of different addresses or seeds are independent, so the sum of the sketches of several tensors is a sketch
of their concatenation.
"""

from typing import Protocol

import torch
from torch import Tensor

from richbll.errors import ShapeError

_SLICE = 2**20  # numbers of a gradient that `outer_in_slices` forms at once: they stay in the cache


class Sketch(Protocol):
    """A random linear map per address, fixed by (seed, address): not by device, dtype, process or cuts in pieces.

    Results are float64 for float64 values, and float32 otherwise.
    """

    size: int  # q

    def flat(self, address: str, values: Tensor, start: int = 0) -> Tensor:
        """S x of elements start … start + p of the flattened tensor named `address`; values (n, p) → (n, q).

        The whole is the sum of its pieces, each at its own start.
        """

    def outer(self, address: str, g: Tensor, a: Tensor) -> Tensor:
        """S vec(Σ_t g_t a_tᵀ), row-major; g (n, T, d_out), a (n, T, d_in) → (n, q)."""


def outer_in_slices(sketch: Sketch, address: str, g: Tensor, a: Tensor) -> Tensor:
    """S vec(Σ_t g_t a_tᵀ) = Σ over slices of rows of S at their starts: at most max(2²⁰, n d_in) numbers at once."""
    n, d_out, d_in = check_outer(g, a)
    dtype = working_dtype(g, a)
    g, a = g.to(dtype), a.to(dtype)
    total = g.new_zeros(n, sketch.size)
    step = max(1, _SLICE // max(1, n * d_in))
    for row in range(0, d_out, step):
        G = torch.bmm(g[:, :, row : row + step].mT, a)  # (n, step, d_in)
        total += sketch.flat(address, G.flatten(1), start=row * d_in)
    return total


def working_dtype(*values: Tensor) -> torch.dtype:
    """float64 where a value has it, and otherwise float32, also for half precision."""
    return torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32


def check_flat(values: Tensor, start: int) -> tuple[int, int]:
    """(n, p), or an error that says what came instead."""
    if values.ndim != 2:
        raise ShapeError(f"values have shape {tuple(values.shape)}: must be (n, p), one flattened gradient per row.")
    if start < 0:
        raise ShapeError(f"start={start}: must be the place of the first element in its tensor, 0 or more.")
    return values.shape[0], values.shape[1]


def check_outer(g: Tensor, a: Tensor) -> tuple[int, int, int]:
    """(n, d_out, d_in), or an error with both shapes."""
    if g.ndim != 3 or a.ndim != 3 or g.shape[:2] != a.shape[:2]:
        raise ShapeError(
            f"g has shape {tuple(g.shape)} and a has {tuple(a.shape)}: must be (n, T, d_out) and (n, T, d_in) with the "
            "same n and T."
        )
    return g.shape[0], g.shape[2], a.shape[2]
