"""Randomness with an address: the same seed and path give the same numbers, other paths independent ones."""

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def child_seed(seed: int, *path: object) -> int:
    """A 63-bit seed for one place in the program: a hash of the whole address, never a sum."""
    address = repr((int(seed), *(str(part) for part in path)))
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "big") >> 1


def child_generator(seed: int, *path: object) -> torch.Generator:
    """A CPU generator for one place in the program, e.g. `child_generator(seed, "functions")`."""
    return torch.Generator().manual_seed(child_seed(seed, *path))


def row_keys(seed: int, start: int, count: int) -> NDArray[np.uint64]:
    """hash(seed, index) for the rows start … start + count − 1: one splitmix64 step per row."""
    base = np.uint64(child_seed(seed, "rows"))
    index = np.arange(start, start + count, dtype=np.uint64)
    z: NDArray[Any] = base + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
