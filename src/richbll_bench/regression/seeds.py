"""Seeds for further places of the program: a hash of the whole address, so that no two of them meet."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived_seed(seed: int, *path: object) -> int:
    """A 63-bit seed.

    Examples:
        >>> derived_seed(0, "member", 1) == derived_seed(0, "member", 1) != derived_seed(1, "member", 0)
        True
    """
    address = repr((int(seed), *map(str, path)))
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "big") >> 1


@contextmanager
def random_numbers(seed: int, *path: object) -> Iterator[None]:
    """Torch's random numbers from this address; the caller's are as they were afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, *path))
        yield
