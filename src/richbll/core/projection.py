"""A: the least-squares map φ^m ≈ A φ^r, kept as AᵀA and never formed (equations 9 to 11).

With the thin decomposition Φ^r = U diag(s) Qᵀ and H = Uᵀ Φ^m Φ^mᵀ U,

    A(λ) = Φ^mᵀ Φ^r (Φ^rᵀΦ^r + λI)⁻¹   gives   A(λ)ᵀA(λ) = Q diag(w) H diag(w) Qᵀ,   w = s / (s² + λ).

Φ^rᵀΦ^r is singular in practice (one dead ReLU is enough), so directions below a relative threshold are dropped.
AᵀA ⪰ 0 whatever is dropped, which is why rich ⪰ plain always holds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.linalg import eigh, orthogonal_complement, svd

# A Gram matrix in float64 resolves singular values of Φ^r down to about 1e-8 of the largest.
_GRAM_RESOLUTION = 1e-7
# With fewer than two rows per direction least squares interpolates; λ = 1e-3 s_max² keeps A finite.
_RIDGE_FLOOR = 1e-3
# A direction of Φ^r whose length is not reproduced within this factor by a second reading is rounding noise.
_REPRODUCED = 2.0


@dataclass(frozen=True)
class Spectrum:
    """Φ^r = U diag(s) Qᵀ from its Gram matrix; the first `rank` directions are above the threshold."""

    Q: Tensor  # (r, r) orthonormal
    s: Tensor  # (r,)   descending
    rank: int  # ρ

    @property
    def whitener(self) -> Tensor:
        """V = Q diag(1/s) over the kept directions, so that U = Φ^r V."""  # (r, ρ)
        return self.Q[:, : self.rank] / self.s[: self.rank]


@dataclass(frozen=True)
class Projection:
    """All that is needed to form AᵀA for any ridge after the data has been read."""

    spectrum: Spectrum
    H: Tensor  # (c, ρ, ρ)  Uᵀ Φ^m Φ^mᵀ U, one per output
    trace_m: Tensor  # (c,)  Σ ‖φ^m‖²

    def AtA(self, ridge: float) -> Tensor:
        """AᵀA of the ridge-regularised projection."""  # (c, r, r)
        Qk = self.spectrum.Q[:, : self.spectrum.rank]
        weighted = self.weights(ridge).unsqueeze(-1) * self.H * self.weights(ridge)
        return Qk @ weighted @ Qk.mT

    def weights(self, ridge: float) -> Tensor:
        """w = s / (s² + λ)."""  # (ρ,)
        s = self.spectrum.s[: self.spectrum.rank]
        return s / (s.square() + ridge)


def default_ridge(spectrum: Spectrum, num_rows: int) -> float:
    """λ = 0, or a relative floor when there are fewer than 2ρ rows."""
    if spectrum.rank == 0 or num_rows >= 2 * spectrum.rank:
        return 0.0
    return _RIDGE_FLOOR * float(spectrum.s[0]) ** 2


def spectrum_of(gram: Tensor, feature_dtype: torch.dtype = torch.float64) -> Spectrum:
    """Decompose Φ^rᵀΦ^r = Q diag(s²) Qᵀ and keep what the features' precision can resolve."""
    eigenvalues, Q = eigh("the Gram matrix of the last-layer features", gram)
    s = eigenvalues.sqrt()
    threshold = max(_GRAM_RESOLUTION, torch.finfo(feature_dtype).eps / 2)
    rank = int((s > threshold * s.max()).sum()) if s.numel() and s.max() > 0 else 0
    return Spectrum(Q=Q, s=s, rank=rank)


def refined_projection(spectrum: Spectrum, gram: Tensor, UtU: Tensor, CtC: Tensor, trace_m: Tensor) -> Projection:
    """The projection from a second reading with U = Φ^r V, where UᵀU is I only up to the Gram's rounding.

    UᵀU = E diag(t) Eᵀ; U' = U E diag(t^-½) is orthonormal to working precision, and Φ^r V' = U' with
    V' = V E diag(t^-½). From V' = Q' diag(1/s') Oᵀ follows Φ^r Q' = (U'O) diag(s'), the thin decomposition
    again, now as exact as a QR of Φ^r would be (CholeskyQR2).
    """
    t, E = eigh("the second moment of the whitened features", UtU)
    kept = (t > 1 / _REPRODUCED) & (t < _REPRODUCED)
    T = E[:, kept] / t[kept].sqrt()  # (ρ, ρ')
    Q, inverse_s, Ot = svd("the whitening of the last-layer features", spectrum.whitener @ T)
    TO = (T @ Ot.mT).flip(-1)  # singular values of V' ascend in s: flip to descending s
    rank = Q.shape[1]
    return Projection(
        spectrum=_completed(Q.flip(-1), inverse_s.flip(-1).reciprocal(), gram, rank),
        H=TO.mT @ CtC @ TO,
        trace_m=trace_m,
    )


def _completed(Qk: Tensor, sk: Tensor, gram: Tensor, rank: int) -> Spectrum:
    """Add the dropped directions, with what the Gram matrix still knows of their length."""
    complement = orthogonal_complement(Qk)
    small, E = eigh("the dropped part of the Gram matrix", complement.mT @ gram @ complement)
    return Spectrum(Q=torch.cat([Qk, complement @ E], dim=1), s=torch.cat([sk, small.sqrt()]), rank=rank)
