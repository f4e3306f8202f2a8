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
    AᵀA + diag(I, 0), which may be singular; its factor comes from a QR of its roots, over all directions.
    Any L with L Lᵀ = BᵀB gives the same posterior; this one is Q times a triangle.
    """
    Q, rank = projection.spectrum.Q, projection.spectrum.rank
    own = len(Q) if num_own is None else num_own
    if own == len(Q):
        return in_basis(Q, kept_factor(projection, ridge))
    H_root = psd_root("H = UᵀΦ^mΦ^mᵀU", projection.H)  # (c, ρ, ρ)
    prior = Q[:own].expand(len(H_root), -1, -1)  # diag(I, 0) in the basis Q
    rich = torch.nn.functional.pad(H_root * projection.weights(ridge), (0, len(Q) - rank))
    padding = prior.new_zeros(len(prior), max(0, len(Q) - own - rank), len(Q))
    R = torch.linalg.qr(torch.cat([prior, rich, padding], dim=1), mode="r").R
    return Q @ R.mT


def kept_factor(projection: Projection, ridge: float) -> Tensor:
    """C (c, ρ, ρ) with L = Q diag(C, I): in the basis Q of the features BᵀB is I but for the kept directions.

    There C Cᵀ = I + diag(w) H diag(w). The triangle comes from a QR of the stacked roots [I; H^½ diag(w)], so no matrix
    is squared. Where BᵀB is far from losing its I to rounding, which is the rule, it comes from Cholesky at a tenth of
    the price.
    """
    w, rank = projection.weights(ridge), projection.spectrum.rank
    identity = torch.eye(rank, dtype=w.dtype, device=w.device)
    M = w.unsqueeze(-1) * projection.H * w
    if float(M.diagonal(dim1=1, dim2=2).abs().sum(dim=1).max()) < _SAFE:
        lower, info = torch.linalg.cholesky_ex(M + identity)
        if not bool(info.any()):  # rounding may have cost H its signs
            return lower
    H_root = psd_root("H = UᵀΦ^mΦ^mᵀU", projection.H)
    stacked = torch.cat([identity.expand_as(H_root), H_root * w], dim=1)  # (c, 2ρ, ρ)
    return torch.linalg.qr(stacked, mode="r").R.mT  # RᵀR = I + diag(w) H diag(w)


def in_basis(Q: Tensor, lower: Tensor) -> Tensor:
    """Q diag(lower, I)."""  # (c, r, r)
    rank = lower.shape[-1]
    L = Q.expand(len(lower), *Q.shape).clone()
    L[:, :, :rank] = Q[:, :rank] @ lower
    return L
