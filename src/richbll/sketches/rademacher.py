"""Dense sketch of signs: entries ±1/√q. Var⟨Sx, Sy⟩ = (|x|²|y|² + ⟨x, y⟩² − 2 Σ x_j² y_j²) / q.

Never worse than Gaussian entries, and quicker to draw: one bit each.
"""

import torch
from torch import Tensor

from richbll.sketches.dense import Dense
from richbll.sketches.signs import random_signs
from richbll.sketches.sketch import Sketch


def make(size: int, seed: int) -> Sketch:
    """A sketch of signs into `size` numbers."""
    return Dense("rademacher", size, seed, _sign_entries)


def _sign_entries(generator: torch.Generator, rows: int, q: int) -> Tensor:
    return random_signs(generator, rows * q).view(rows, q)  # (rows, q)
