"""Uniform subsampling (section 3.3): the k rows with the smallest hash(seed, index).

Streams, shards and ranks that number their rows alike draw the same subset, whatever their batch size.
"""

import math

import numpy as np
from numpy.typing import NDArray

from richbll.errors import OptionError


def subsample_size(subsample: int | float, num_data: int | None, r: int) -> int:
    """k for an int or a fraction, never below r (and so possibly all of the data)."""
    if isinstance(subsample, bool) or not isinstance(subsample, int | float):
        raise OptionError(f"subsample={subsample!r}: give a number of rows, a fraction, or None for all.")
    if isinstance(subsample, float):
        if not 0 < subsample <= 1:
            raise OptionError(f"subsample={subsample!r}: a fraction must lie in (0, 1].")
        if num_data is None:
            raise OptionError(
                f"subsample={subsample!r} is a fraction, but this stream can be read only once, so its length is "
                "not known in time: give a number of rows instead."
            )
        subsample = math.ceil(subsample * num_data)
    if subsample < 1:
        raise OptionError(f"subsample={subsample!r}: must be at least 1.")
    return max(subsample, r)


def smallest(keys: NDArray[np.uint64], k: int) -> NDArray[np.bool_]:
    """Mask of the k smallest keys (all of them when there are fewer)."""
    if len(keys) <= k:
        return np.ones(len(keys), dtype=bool)
    return keys <= np.partition(keys, k - 1)[k - 1]
