"""Numbers too small for float32's usual form, below 1e-38, and arithmetic on which is many times slower.

What decays towards zero in a training, such as the moments of a weight that is not used, ends there.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_are_zero() -> Iterator[None]:
    """Of this thread, for as long as it lasts."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
