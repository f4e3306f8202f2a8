"""Random signs at the price of random bits."""

import numpy as np
import torch
from torch import Tensor

_ANY = -(2**63)  # the least int64: random_ from here on gives all 64 bits


def random_signs(generator: torch.Generator, count: int) -> Tensor:
    """`count` independent signs ±1 as int8: one bit each, 64 from every number drawn."""
    words = torch.empty(-(-count // 64), dtype=torch.int64).random_(_ANY, None, generator=generator)
    bits = np.unpackbits(words.numpy().view(np.uint8), count=count).view(np.int8)
    return torch.from_numpy(bits).mul_(-2).add_(1)  # (count,)
