"""L with L Lᵀ = BᵀB = I + AᵀA: the prior of the whole network in last-layer space (Theorem 3.2)."""

import torch
from torch import Tensor

from richbll.core.projection import Projection
from richbll.linalg import psd_root


def transform(projection: Projection, ridge: float, num_own: int | None = None) -> Tensor:
    """L (c, r, r), one factor per output. It always exists: BᵀB ⪰ I.

    With a wider basis only the first `num_own` features are the last layer's own, and the prior is
    AᵀA + diag(I, 0), which may be singular; its factor comes from the same QR, over all directions.

    In the basis Q of the features BᵀB is I + diag(w) H diag(w) on the kept directions and I on the others.
    Its factor comes from a QR of the stacked roots [I; H^½ diag(w)], so no matrix is squared and nothing can
    fail. Any L with L Lᵀ = BᵀB gives the same posterior; this one is Q times a triangle.
    """
    Q, rank = projection.spectrum.Q, projection.spectrum.rank
    H_root = psd_root("H = UᵀΦ^mΦ^mᵀU", projection.H)  # (c, ρ, ρ)
    if num_own is not None and num_own < len(Q):
        own = Q[:num_own].expand(len(H_root), -1, -1)  # diag(I, 0) in the basis Q
        rich = torch.nn.functional.pad(H_root * projection.weights(ridge), (0, len(Q) - rank))
        padding = own.new_zeros(len(own), max(0, len(Q) - num_own - rank), len(Q))
        R = torch.linalg.qr(torch.cat([own, rich, padding], dim=1), mode="r").R
        return Q @ R.mT
    identity = torch.eye(rank, dtype=Q.dtype, device=Q.device).expand_as(H_root)
    stacked = torch.cat([identity, H_root * projection.weights(ridge)], dim=1)  # (c, 2ρ, ρ)
    R = torch.linalg.qr(stacked, mode="r").R  # RᵀR = I + diag(w) H diag(w)
    L = Q.expand(len(R), *Q.shape).clone()
    L[:, :, :rank] = Q[:, :rank] @ R.mT
    return L
