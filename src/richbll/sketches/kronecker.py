"""Two-sided sketch (as in LoGra, Choe et al., 2024): S = P ⊗ Q with Gaussian P (q₁, d_out) and Q (q₂, d_in).

    S vec(Σ_t g_t a_tᵀ) = vec(Σ_t (P g_t)(Q a_t)ᵀ),     q₁ = ⌊√q⌋, q₂ = ⌊q/q₁⌋

The cheapest where T is large; q − q₁q₂ numbers stay zero. The variance falls as 2/q₁ + 2/q₂, so as 1/√q and not 1/q:
for g, a alone |S vec(g aᵀ)|² has relative variance (1 + 2/q₁)(1 + 2/q₂) − 1.

`flat` is the Gaussian sketch, another map than `outer` of the same address, so an address is used with one of the two.
Memory: that of three dense sketches, see `dense.py`, and n T (q₁ + q₂) numbers.
"""

from math import isqrt

import torch
from torch import Tensor

from richbll.sketches.dense import Dense
from richbll.sketches.gaussian import normal_entries
from richbll.sketches.sketch import Sketch, check_outer


def make(size: int, seed: int) -> Sketch:
    """A two-sided sketch into `size` numbers."""
    return _Kronecker(size, seed)


class _Kronecker:
    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        q1 = isqrt(size)
        self._left = Dense("kronecker g", q1, seed, normal_entries)
        self._right = Dense("kronecker a", size // q1, seed, normal_entries)
        self._flat = Dense("kronecker flat", size, seed, normal_entries)

    def flat(self, address: str, values: Tensor, start: int = 0) -> Tensor:
        """The Gaussian sketch of the values."""
        return self._flat.flat(address, values, start)

    def outer(self, address: str, g: Tensor, a: Tensor) -> Tensor:
        """vec(Σ_t (P g_t)(Q a_t)ᵀ), with zeros behind."""
        check_outer(g, a)
        P_g = self._left.flat(address, g.flatten(0, 1)).view(*g.shape[:2], self._left.size)  # (n, T, q₁)
        Q_a = self._right.flat(address, a.flatten(0, 1)).view(*a.shape[:2], self._right.size)  # (n, T, q₂)
        dtype = torch.promote_types(P_g.dtype, Q_a.dtype)
        product = torch.bmm(P_g.to(dtype).mT, Q_a.to(dtype)).flatten(1)  # (n, q₁ q₂)
        return torch.nn.functional.pad(product, (0, self.size - product.shape[1]))
