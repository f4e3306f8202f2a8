"""Dense Gaussian sketch: entries N(0, 1/q). Var⟨Sx, Sy⟩ = (|x|²|y|² + ⟨x, y⟩²) / q, whatever x and y look like."""

import torch
from torch import Tensor

from richbll.sketches.dense import Dense
from richbll.sketches.sketch import Sketch


def make(size: int, seed: int) -> Sketch:
    """A Gaussian sketch into `size` numbers."""
    return Dense("gaussian", size, seed, normal_entries)


def normal_entries(generator: torch.Generator, rows: int, q: int) -> Tensor:
    """N(0, 1) entries, (rows, q): float32 for every dtype of values, so that the map is one."""
    return torch.randn(rows, q, generator=generator, dtype=torch.float32)
