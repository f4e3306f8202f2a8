"""TensorSketch (Pham and Pagh, 2013): the count sketch of g aᵀ from those of g and a, without forming g aᵀ.

Element (o, i) goes to bucket (h(o) + h'(i)) mod q with sign s(o) s'(i), so the sketch is a circular convolution:

    S vec(Σ_t g_t a_tᵀ) = F⁻¹ Σ_t F(C g_t) ∘ F(C' a_t),     C, C' count sketches, F the Fourier transform

For g, a alone |S vec(g aᵀ)|² has relative variance 8/q at most, where a dense sketch has 2/q.

`flat` is the fold: unbiased too, but another map than `outer` of the same address, so an address is used with one of
the two. Memory: some multiples of max(2²⁰, q) numbers at once; buckets and signs are kept, 9 bytes for each row and
column of a weight, rounded up to 2¹².
"""

import torch
from torch import Tensor

from richbll.rng import child_generator
from richbll.sketches import fold
from richbll.sketches.signs import random_signs
from richbll.sketches.sketch import Sketch, check_outer, working_dtype

_DRAWN = 2**12  # buckets that one generator draws
_TRANSFORMED = 2**20  # numbers that are transformed at once


def make(size: int, seed: int) -> Sketch:
    """A TensorSketch into `size` numbers."""
    return _TensorSketch(size, seed)


class _TensorSketch:
    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed
        self._fold = fold.make(size, seed)
        self._kept: dict[tuple[str, str, int], tuple[Tensor, Tensor]] = {}

    def flat(self, address: str, values: Tensor, start: int = 0) -> Tensor:
        """The fold of the values."""
        return self._fold.flat(address, values, start)

    def outer(self, address: str, g: Tensor, a: Tensor) -> Tensor:
        """F⁻¹ Σ_t F(C g_t) ∘ F(C' a_t), some of the n and T at a time."""
        n, _, _ = check_outer(g, a)
        dtype, T = working_dtype(g, a), g.shape[1]
        pairs = max(1, _TRANSFORMED // self.size)  # of example and t
        times = max(1, min(T, pairs))
        examples = max(1, pairs // times)
        total = g.new_zeros(n, self.size, dtype=dtype)
        for i in range(0, n, examples):
            spectrum = g.new_zeros(len(g[i : i + examples]), self.size // 2 + 1, dtype=dtype.to_complex())
            for t in range(0, T, times):
                here = slice(i, i + examples), slice(t, t + times)
                F_g = torch.fft.rfft(self._count("g", address, g[here].to(dtype)))  # (n', T', q/2 + 1)
                F_a = torch.fft.rfft(self._count("a", address, a[here].to(dtype)))
                spectrum += (F_g * F_a).sum(dim=1)
            total[i : i + examples] = torch.fft.irfft(spectrum, n=self.size)
        return total

    def _count(self, side: str, address: str, x: Tensor) -> Tensor:
        """(C x)_k = Σ_{j : h(j) = k} s_j x_j; (n, T, d) → (n, T, q)."""
        d = x.shape[2]
        drawn = [self._drawn(side, address, number) for number in range(max(1, -(-d // _DRAWN)))]
        h = torch.cat([buckets for buckets, _ in drawn])[:d].to(x.device)
        s = torch.cat([signs for _, signs in drawn])[:d].to(x.device, x.dtype)
        return x.new_zeros(*x.shape[:2], self.size).index_add_(2, h, x * s)

    def _drawn(self, side: str, address: str, number: int) -> tuple[Tensor, Tensor]:
        """Some buckets, int64, and their signs, int8."""
        key = (side, address, number)
        if key not in self._kept:
            generator = child_generator(self._seed, "sketch", f"tensor_sketch {side}", address, number)
            buckets = torch.randint(self.size, (_DRAWN,), generator=generator)
            self._kept[key] = buckets, random_signs(generator, _DRAWN)
        return self._kept[key]
