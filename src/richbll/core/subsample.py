"""Uniform subsampling (section 3.3): the k rows with the smallest hash(seed, index).

Streams, shards and ranks that number their rows alike draw the same subset, whatever their batch size.
"""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from richbll.errors import OptionError
from richbll.precision import in_float64
from richbll.rng import child_generator


def advised_size(phi_r: Tensor, ratio: float, seed: int) -> int:
    """The smallest k whose plain posterior variance is right for subset after subset; N when none is.

    The variance at noise ratio σ²/τ², averaged over (up to 2000 of) the N rows of phi_r, is compared between all rows
    and k of them scaled by N/k, for 8 random subsets; all must agree within 4 %. The bias is about r/k; the rest is
    luck, and depends on how unequal the rows' leverages are, which is why it is measured. k doubles from 20 r.
    """
    phi = in_float64(phi_r)
    N, r = phi.shape
    generator = child_generator(seed, "advised size")
    probe = phi[torch.randperm(N, generator=generator)[:2000].to(phi.device)]
    identity = ratio * torch.eye(r, dtype=phi.dtype, device=phi.device)

    def mean_variance(gram: Tensor) -> float:
        chol, failed = torch.linalg.cholesky_ex(gram + identity)
        if failed.any():
            return math.inf
        return float(torch.linalg.solve_triangular(chol, probe.mT, upper=False).square().sum() / len(probe))

    whole = mean_variance(phi.mT @ phi)
    k = 20 * r
    while 1.5 * k < N:
        rows = [torch.randperm(N, generator=generator)[:k].to(phi.device) for _ in range(8)]
        if all(abs(mean_variance(N / k * (phi[i].mT @ phi[i])) / whole - 1) < 0.04 for i in rows):
            return k
        k *= 2
    return N


def subsample_size(subsample: Any, num_data: int | None, least: int) -> int:
    """k for an int or a fraction, never below a least number (and so possibly all of the data)."""
    if isinstance(subsample, bool) or not isinstance(subsample, Real):
        raise OptionError(f'subsample={subsample!r}: give a number of rows, a fraction, "auto", or None for all.')
    if not isinstance(subsample, Integral):
        if not 0 < float(subsample) <= 1:
            raise OptionError(f"subsample={subsample!r}: a fraction must lie in (0, 1].")
        if num_data is None:
            raise OptionError(
                f"subsample={subsample!r} is a fraction, but this stream can be read only once, so its length is "
                "not known in time: give a number of rows instead."
            )
        return max(math.ceil(float(subsample) * num_data), least)
    if subsample < 1:
        raise OptionError(f"subsample={subsample!r}: must be at least 1.")
    return max(int(subsample), least)


def smallest(keys: NDArray[np.uint64], k: int) -> NDArray[np.bool_]:
    """Mask of the k smallest keys (all of them when there are fewer)."""
    if len(keys) <= k:
        return np.ones(len(keys), dtype=bool)
    return keys <= np.partition(keys, k - 1)[k - 1]
