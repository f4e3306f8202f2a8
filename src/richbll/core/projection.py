"""A: the least-squares map φ^m ≈ A φ^r, kept as AᵀA and never formed (equations 9 to 11).

With the thin decomposition Φ^r = U diag(s) Qᵀ and H = Uᵀ Φ^m Φ^mᵀ U,

    A(λ) = Φ^mᵀ Φ^r (Φ^rᵀΦ^r + λI)⁻¹   gives   A(λ)ᵀA(λ) = Q diag(w) H diag(w) Qᵀ,   w = s / (s² + λ).

Φ^rᵀΦ^r is singular in practice (one dead ReLU is enough), so directions below a relative threshold are dropped.
AᵀA ⪰ 0 whatever is dropped, which is why rich ⪰ plain always holds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.errors import OptionError
from richbll.linalg import eigh, num_sure, refined_rotation, rough

# Singular values of Φ^r below this fraction of the largest are dropped from the projection.
_CUTOFF = 1e-7
# With fewer than two rows per direction least squares interpolates; λ = 1e-3 s_max² keeps A finite.
_RIDGE_FLOOR = 1e-3


@dataclass(frozen=True)
class Spectrum:
    """Φ^r = U diag(s) Qᵀ; the first `rank` directions are above the cut-off, from `num_alive` on they are zero."""

    Q: Tensor  # (r, r) orthonormal
    s: Tensor  # (r,)   descending
    rank: int  # ρ
    num_alive: int

    @property
    def whitener(self) -> Tensor:
        """V = Q diag(1/s) over the kept directions, so that U = Φ^r V."""  # (r, ρ)
        return self.Q[:, : self.rank] / self.s[: self.rank]

    @property
    def num_sure(self) -> int:
        """How many directions the Gram matrix, which squares the condition of Φ^r, gives to eight digits or better."""
        return num_sure(self.s[: self.num_alive])

    @property
    def rough_scale(self) -> Tensor:
        """s over all directions that are not zero, no smaller than what the Gram matrix resolves."""
        return rough(self.s[: self.num_alive])

    @property
    def kept_scale(self) -> Tensor:
        """The same over the kept directions."""
        return self.rough_scale[: self.rank]

    @property
    def rough_whitener(self) -> Tensor:
        """V = Q diag(1/s) over all directions that are not zero; Φ^r V is orthonormal only roughly."""  # (r, alive)
        return self.Q[:, : self.num_alive] / self.rough_scale


@dataclass(frozen=True)
class Projection:
    """All that is needed to form AᵀA for any ridge after the data has been read."""

    spectrum: Spectrum
    H: Tensor  # (c, ρ, ρ)  Uᵀ Φ^m Φ^mᵀ U, one per output
    trace_m: Tensor  # (c,)  Σ ‖φ^m‖²

    def AtA(self, ridge: float) -> Tensor:
        """AᵀA of the ridge-regularised projection."""  # (c, r, r)
        Qk = self.spectrum.Q[:, : self.spectrum.rank]
        w = self.weights(ridge)
        return Qk @ (w.unsqueeze(-1) * self.H * w) @ Qk.mT

    def weights(self, ridge: float) -> Tensor:
        """w = s / (s² + λ)."""  # (ρ,)
        s = self.spectrum.s[: self.spectrum.rank]
        return s / (s.square() + ridge)


def default_ridge(spectrum: Spectrum, num_rows: int) -> float:
    """λ = 0, or a relative floor when there are fewer than 2ρ rows."""
    if spectrum.rank == 0 or num_rows >= 2 * spectrum.rank:
        return 0.0
    return _RIDGE_FLOOR * float(spectrum.s[0]) ** 2


def gcv_ridge(projection: Projection, num_rows: int) -> float:
    """λ of least generalised cross-validation score ‖(I − S)Φ^m‖² / (N − tr S)², S = Φ^r(Φ^rᵀΦ^r + λI)⁻¹Φ^rᵀ.

    With h = s²/(s² + λ): ‖(I − S)Φ^m‖² = tr K − Σ H_ii + Σ (1 − h_i)² H_ii and tr S = Σ h_i; all outputs together.
    """
    spectrum = projection.spectrum
    if num_rows <= spectrum.rank:
        raise OptionError(
            f'ridge="gcv" needs more rows than feature directions, but there are {num_rows} rows for {spectrum.rank}. '
            "Read more rows, or give a number."
        )
    s2 = spectrum.s[: spectrum.rank].square()
    if spectrum.rank == 0:
        return 0.0
    energy = projection.H.diagonal(dim1=1, dim2=2).sum(dim=0)  # (ρ,) Σ_c H_ii
    outside = (projection.trace_m.sum() - energy.sum()).clamp_min(0)
    ridges = s2[0] * torch.logspace(-14, 2, 321, dtype=s2.dtype, device=s2.device)
    h = s2 / (s2 + ridges.unsqueeze(1))  # (λ, ρ)
    score = (outside + ((1 - h).square() * energy).sum(dim=1)) / (num_rows - h.sum(dim=1)).square()
    return float(ridges[score.argmin()])


def plain_projection(like: Tensor) -> Projection:
    """A = 0: what is known of a class without data."""
    Q = torch.eye(len(like), dtype=like.dtype, device=like.device)
    spectrum = Spectrum(Q, torch.zeros_like(Q[0]), rank=0, num_alive=0)
    return Projection(spectrum, H=like.new_zeros(1, 0, 0), trace_m=like.new_zeros(1))


def spectrum_of(gram: Tensor, num_rows: int, feature_dtype: torch.dtype = torch.float64) -> Spectrum:
    """Decompose Φ^rᵀΦ^r = Q diag(s²) Qᵀ of so many rows of features with that precision."""
    r, is_alive = len(gram), gram.diagonal() > 0  # a dead ReLU's column is exactly zero
    alive, dead = is_alive.nonzero().flatten(), (~is_alive).nonzero().flatten()
    count = len(alive)
    part = gram if count == r else gram.index_select(0, alive).index_select(1, alive)
    eigenvalues, vectors = eigh("the Gram matrix of the last-layer features", part)
    Q = vectors.contiguous()  # laid out as a file has it, so that products are the same to the bit
    if count < r:
        Q = torch.zeros_like(gram)
        Q[alive, :count] = vectors
        Q[dead, torch.arange(count, r, device=gram.device)] = 1
    num_alive = min(count, num_rows)
    s = torch.cat([eigenvalues[:num_alive].sqrt(), gram.new_zeros(r - num_alive)])
    return Spectrum(Q, s, rank=_rank(s, feature_dtype), num_alive=num_alive)


def _rank(s: Tensor, feature_dtype: torch.dtype) -> int:
    """How many singular values are above the cut-off and above the rounding of the features."""
    cutoff = max(_CUTOFF, torch.finfo(feature_dtype).eps / 2)
    return int((s > cutoff * s[0]).sum()) if s.numel() else 0


def refined_projection(
    spectrum: Spectrum, UtU: Tensor, CtC: Tensor, trace_m: Tensor, feature_dtype: torch.dtype = torch.float64
) -> Projection:
    """The projection from a second look with U = Φ^r V, V the rough whitener, and C = Φ^mᵀU.

    The Gram matrix has squared the condition of Φ^r; UᵀU has not, and only its last columns are needed, those of
    directions that are not sure: UtU (alive, alive − sure). With O and s' from them the thin decomposition is
    Φ^r (Q O) = U' diag(s'), U' = U T, T = diag(s) O diag(1/s'), and H = Tᵀ CᵀC T.
    """
    scale, alive = spectrum.rough_scale, spectrum.num_alive
    if UtU.shape[1] == 0:  # directions below the rounding of the features are alive, but not kept
        return Projection(spectrum, CtC[:, : spectrum.rank, : spectrum.rank], trace_m)
    rotation, s = refined_rotation("the second look at the features", scale, UtU)
    rank = _rank(s, feature_dtype)
    T = rotation.between(scale, s)
    H = T.applied(T.applied(CtC).mT)[..., :rank, :rank].contiguous()  # what is dropped may be divided by zero
    Q = torch.cat([rotation.applied(spectrum.Q[:, :alive]), spectrum.Q[:, alive:]], dim=1)
    return Projection(Spectrum(Q, torch.cat([s, spectrum.s[alive:]]), rank, alive), H, trace_m)
