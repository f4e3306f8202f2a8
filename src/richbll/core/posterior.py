"""The posterior in spectral form: any noise and prior scale after the fit, at O(r) each.

With R a root of the Gram matrix (RᵀR = gram_posterior) and R L = P diag(√λ) Uᵀ, put W = L U. Then Theorem 3.2 reads

    S^B(x, x') = Σ_j (φ^r(x)ᵀw_j) d_j (w_jᵀφ^r(x')),   d_j = τ² / (1 + τ² λ_j / σ²).

With V = W diag(√d) and Z = Φ^r V this is S^B = Z Zᵀ: a variance is a sum of squares and cannot be negative, in any
precision, and a coherent draw of the function is f + Z ε.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.core.projection import Spectrum
from richbll.core.transform import in_basis
from richbll.linalg import lower_product, right_singular


@dataclass(frozen=True)
class SpectralPosterior:
    """W and λ, one set per output."""

    W: Tensor  # (c, r, r)
    eigenvalues: Tensor  # (c, r)  λ_j, descending


def gram_root(spectrum: Spectrum, row_weight: float) -> Tensor:
    """R (r, r) with RᵀR = (N/k) Φ^rᵀΦ^r, built from singular values and so without squaring them."""
    return row_weight**0.5 * spectrum.s.unsqueeze(-1) * spectrum.Q.mT


def spectral_posterior(L: Tensor, root: Tensor) -> SpectralPosterior:
    """Diagonalise Lᵀ gram_posterior L = U diag(λ) Uᵀ through the singular values of R L."""
    sqrt_eigenvalues, Ut = right_singular("the root of the posterior's Gram matrix", root @ L)
    return SpectralPosterior(W=L @ Ut.mT, eigenvalues=sqrt_eigenvalues.square())


def posterior_in_basis(spectrum: Spectrum, C: Tensor, row_weight: float) -> SpectralPosterior:
    """The same where the rows of the data term are those of the spectrum, each standing for N/k examples.

    With Φ^r = U diag(s) Qᵀ and L = Q diag(C, I), C a lower triangle, R L = (N/k)^½ diag(s) diag(C, I): what the
    projection does not keep is diagonal already, and no larger than the rest, as C Cᵀ ⪰ I.
    """
    rank, s = C.shape[-1], row_weight**0.5 * spectrum.s
    kept, Ut = right_singular("the root of the posterior's Gram matrix", s[:rank].unsqueeze(-1) * C, is_lower=True)
    rest = s[rank:].expand(len(C), -1)
    return SpectralPosterior(in_basis(spectrum.Q, lower_product(C, Ut.mT)), torch.cat([kept, rest], dim=-1).square())


def shrinkage(posterior: SpectralPosterior, sigma2: Tensor, tau2: Tensor) -> Tensor:
    """d_j = τ² / (1 + τ² λ_j / σ²) for σ², τ² of shape (c,)."""  # (c, r)
    sigma2, tau2 = sigma2.unsqueeze(-1), tau2.unsqueeze(-1)
    return tau2 / (1 + tau2 * posterior.eigenvalues / sigma2)


def posterior_root(posterior: SpectralPosterior, sigma2: Tensor, tau2: Tensor) -> Tensor:
    """V = W diag(√d): the posterior covariance of the last-layer weights is V Vᵀ."""  # (c, r, r)
    return posterior.W * shrinkage(posterior, sigma2, tau2).sqrt().unsqueeze(-2)


def variance(Z: Tensor) -> Tensor:
    """‖z(x)‖² for Z = Φ^r V (n, c, r)."""  # (n, c)
    return torch.linalg.vector_norm(Z, dim=-1).square()


def covariance(Z: Tensor) -> Tensor:
    """S^B = Z Zᵀ over the rows, one matrix per output."""  # (c, n, n)
    return torch.einsum("icr,jcr->cij", Z, Z)


def function_offsets(Z: Tensor, eps: Tensor) -> Tensor:
    """What coherent draws add to the mean: z(x)ᵀε with ε (s, c, r) fixed for a draw, also where outputs share Z."""
    if Z.shape[1] == 1:
        return torch.einsum("nr,scr->snc", Z.squeeze(1), eps)
    return torch.einsum("ncr,scr->snc", Z, eps)  # (s, n, c)


def effective_dimension(posterior: SpectralPosterior, sigma2: Tensor, tau2: Tensor) -> Tensor:
    """γ = Σ_j τ²λ_j / (σ² + τ²λ_j): how many directions the data determines."""  # (c,)
    signal = tau2.unsqueeze(-1) * posterior.eigenvalues
    return (signal / (sigma2.unsqueeze(-1) + signal)).sum(dim=-1)
