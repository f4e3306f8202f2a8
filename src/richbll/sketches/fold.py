"""Block-cyclic count sketch: signs, a rotation of every q elements, and a sum, near the speed of reading the values.

    (S x)_k = Σ_{j : (j + shift_{⌊j/q⌋}) mod q = k} s_j x_j,     signs s_j and shifts independent and uniform

Signs alone make it unbiased. The shift of every block keeps its variance: elements of one block never share a bucket,
those of two blocks do with probability 1/q, and so, as for the count sketch with a random bucket for each element,

    Var⟨Sx, Sy⟩ = (1/q) Σ_{i < j in different blocks} (x_i y_j + x_j y_i)² ≤ (|x|²|y|² + ⟨x, y⟩²) / q

for every x and y. Without it a weight whose rows divide q would add up its rows input by input, and a few active inputs
would share a few buckets.

Memory: the signs are kept, one byte per parameter, rounded up to max(2¹⁴, q) for each address. Time: one operation per
q elements, so it is made for q of some hundreds and more.
"""

import torch
from torch import Tensor

from richbll.rng import child_generator
from richbll.sketches.signs import random_signs
from richbll.sketches.sketch import Sketch, check_flat, outer_in_slices, working_dtype

_DRAWN = 2**14  # signs that one generator draws


def make(size: int, seed: int) -> Sketch:
    """A folding sketch into `size` numbers."""
    return _Fold(size, seed)


class _Fold:
    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._seed = seed
        self._together = max(1, _DRAWN // size)  # blocks of q signs that one generator draws
        self._kept: dict[tuple[str, int, torch.device], tuple[Tensor, list[int]]] = {}

    def flat(self, address: str, values: Tensor, start: int = 0) -> Tensor:
        """Every block is added where its shift puts it in 2q buckets; then bucket q + k goes to k."""
        q = self.size
        n, p = check_flat(values, start)
        dtype = working_dtype(values)
        twice = values.new_zeros(n, 2 * q, dtype=dtype)
        begins = range(start // q * q, start + p if n and p else 0, q)  # of blocks, in the tensor
        within = [(max(start - here, 0), min(start + p - here, q)) for here in begins]  # what is given of each
        pieces = torch.split(values.to(dtype), [high - low for low, high in within], dim=1) if within else ()
        for number, (piece, (low, high)) in enumerate(zip(pieces, within, strict=True), start=start // q):
            drawn, row = divmod(number, self._together)
            if row == 0 or number == start // q:
                numbers, shifts = self._drawn(address, drawn, values.device)
                signs = numbers.to(dtype).unbind()
            sign = signs[row] if high - low == q else signs[row][low:high]
            twice.narrow(1, shifts[row] + low, high - low).addcmul_(piece, sign)
        return twice[:, :q] + twice[:, q:]

    def outer(self, address: str, g: Tensor, a: Tensor) -> Tensor:
        """The flat sketch of Σ_t g_t a_tᵀ."""
        return outer_in_slices(self, address, g, a)

    def _drawn(self, address: str, number: int, device: torch.device) -> tuple[Tensor, list[int]]:
        """The signs, int8, and the shifts of some blocks."""
        key = (address, number, device)
        if key not in self._kept:
            generator = child_generator(self._seed, "sketch", "fold", address, number)
            shifts: list[int] = torch.randint(self.size, (self._together,), generator=generator).tolist()
            signs = random_signs(generator, self._together * self.size).view(-1, self.size)  # (blocks, q)
            self._kept[key] = signs.to(device), shifts
        return self._kept[key]
