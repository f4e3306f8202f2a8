"""Factorisations that say what failed. Everything here is float64."""

import torch
from torch import Tensor

from richbll.errors import NumericalError

# Eigenvalues above this fraction of the largest have at least eight digits.
_RESOLVED = 1e-8


def _describe(name: str, matrix: Tensor) -> str:
    finite = bool(torch.isfinite(matrix).all())
    size = " × ".join(map(str, matrix.shape))
    scale = f"largest entry {matrix.abs().max().item():.3g}" if finite and matrix.numel() else "entries not finite"
    return f"{name} ({size}, {str(matrix.dtype).removeprefix('torch.')}, {scale})"


def eigh(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (descending, clamped at 0) and eigenvectors of a positive semi-definite matrix."""
    symmetric = (matrix + matrix.mT) / 2
    try:
        if not bool(torch.isfinite(symmetric).all()):
            raise RuntimeError("not finite")
        values, vectors = torch.linalg.eigh(symmetric)
    except RuntimeError as error:
        raise NumericalError(
            f"The eigendecomposition of {_describe(name, matrix)} failed: {error}. "
            "Rescale the model's features or outputs, or look for Inf in the weights."
        ) from error
    return values.flip(-1).clamp_min(0), vectors.flip(-1)


def psd_root(name: str, matrix: Tensor) -> Tensor:
    """R with RᵀR = matrix, for a positive semi-definite matrix that may be singular."""
    values, vectors = eigh(name, matrix)
    return values.sqrt().unsqueeze(-1) * vectors.mT


def cholesky(name: str, matrix: Tensor) -> Tensor:
    """Lower L with L Lᵀ = matrix, for a positive definite matrix."""
    L, info = torch.linalg.cholesky_ex(matrix)
    if bool((info != 0).any()):
        raise NumericalError(
            f"The Cholesky factorisation of {_describe(name, matrix)} failed. "
            "Rescale the model's features or outputs, or look for Inf in the weights."
        )
    return L


def svd(name: str, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin singular value decomposition P diag(s) Oᵀ, returned as (P, s, Oᵀ)."""
    try:
        if not bool(torch.isfinite(matrix).all()):
            raise RuntimeError("not finite")
        P, s, Ot = torch.linalg.svd(matrix, full_matrices=False)
    except RuntimeError as error:
        raise NumericalError(
            f"The singular value decomposition of {_describe(name, matrix)} failed: {error}. "
            "Rescale the model's features or outputs, or look for Inf in the weights."
        ) from error
    return P, s, Ot


def right_singular(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, descending, and Oᵀ. From matrixᵀ matrix where that resolves all of them to eight digits."""
    values, vectors = eigh(name, matrix.mT @ matrix)
    if bool((values[..., -1] > _RESOLVED * values[..., 0]).all()):
        return values.sqrt(), vectors.mT
    _, s, Ot = svd(name, matrix)
    return s, Ot
