"""L with L Lᵀ = BᵀB = I + AᵀA: the prior of the whole network in last-layer space (Theorem 3.2)."""

import torch
from torch import Tensor

from richbll.core.projection import Projection
from richbll.linalg import psd_root

# With tr AᵀA below this, I + AᵀA keeps at least ten digits of its I.
_SAFE = 1e5


def transform(projection: Projection, ridge: float, num_own: int | None = None) -> Tensor:
    """L (c, r, r), one factor per output. It always exists: BᵀB ⪰ I.

    With a wider basis only the first `num_own` features are the last layer's own, and the prior is
    AᵀA + diag(I, 0), which may be singular; its factor comes from the same QR, over all directions.

    In the basis Q of the features BᵀB is I + diag(w) H diag(w) on the kept directions and I on the others.
    Its factor comes from a QR of the stacked roots [I; H^½ diag(w)], so no matrix is squared. Any L with L Lᵀ = BᵀB
    gives the same posterior; this one is Q times a triangle. Where BᵀB is far from losing its I to rounding, which is
    the rule, the triangle comes from Cholesky at a tenth of the price.
    """
    Q, rank = projection.spectrum.Q, projection.spectrum.rank
    own = len(Q) if num_own is None else num_own
    if own == len(Q):
        w = projection.weights(ridge)
        M = w.unsqueeze(-1) * projection.H * w
        if float(M.diagonal(dim1=1, dim2=2).abs().sum(dim=1).max()) < _SAFE:
            lower, info = torch.linalg.cholesky_ex(M + torch.eye(rank, dtype=Q.dtype, device=Q.device))
            if not bool(info.any()):  # rounding may have cost H its signs
                return _in_basis(Q, lower)
    H_root = psd_root("H = UᵀΦ^mΦ^mᵀU", projection.H)  # (c, ρ, ρ)
    if own < len(Q):
        prior = Q[:own].expand(len(H_root), -1, -1)  # diag(I, 0) in the basis Q
        rich = torch.nn.functional.pad(H_root * projection.weights(ridge), (0, len(Q) - rank))
        padding = prior.new_zeros(len(prior), max(0, len(Q) - own - rank), len(Q))
        R = torch.linalg.qr(torch.cat([prior, rich, padding], dim=1), mode="r").R
        return Q @ R.mT
    identity = torch.eye(rank, dtype=Q.dtype, device=Q.device).expand_as(H_root)
    stacked = torch.cat([identity, H_root * projection.weights(ridge)], dim=1)  # (c, 2ρ, ρ)
    R = torch.linalg.qr(stacked, mode="r").R  # RᵀR = I + diag(w) H diag(w)
    return _in_basis(Q, R.mT)


def _in_basis(Q: Tensor, lower: Tensor) -> Tensor:
    """Q diag(lower, I)."""  # (c, r, r)
    rank = lower.shape[-1]
    L = Q.expand(len(lower), *Q.shape).clone()
    L[:, :, :rank] = Q[:, :rank] @ lower
    return L
