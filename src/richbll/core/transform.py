"""L with L Lᵀ = BᵀB = I + AᵀA: the prior of the whole network in last-layer space (Theorem 3.2)."""

import torch
from torch import Tensor

from richbll.core.projection import Projection
from richbll.linalg import psd_root


def transform(projection: Projection, ridge: float) -> Tensor:
    """L (c, r, r), one factor per output. It always exists: BᵀB ⪰ I.

    In the basis Q of the features BᵀB is I + diag(w) H diag(w) on the kept directions and I on the others.
    Its factor comes from a QR of the stacked roots [I; H^½ diag(w)], so no matrix is squared and nothing can
    fail. Any L with L Lᵀ = BᵀB gives the same posterior; this one is Q times a triangle.
    """
    Q, rank = projection.spectrum.Q, projection.spectrum.rank
    H_root = psd_root("H = UᵀΦ^mΦ^mᵀU", projection.H)  # (c, ρ, ρ)
    identity = torch.eye(rank, dtype=Q.dtype, device=Q.device).expand_as(H_root)
    stacked = torch.cat([identity, H_root * projection.weights(ridge)], dim=1)  # (c, 2ρ, ρ)
    R = torch.linalg.qr(stacked, mode="r").R  # RᵀR = I + diag(w) H diag(w)
    L = Q.expand(len(R), *Q.shape).clone()
    L[:, :, :rank] = Q[:, :rank] @ R.mT
    return L
