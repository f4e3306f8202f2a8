"""Factorisations of float64 matrices that say what failed, and the Gram matrices that they begin with."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.errors import NumericalError
from richbll.precision import in_float64

# A Gram matrix in float64 resolves singular values down to this fraction of the largest,
_GRAM_RESOLUTION = 1e-8
# and gives the directions of those above this one to eight digits or better.
_SURE = 1e-4
# Up to so many columns a product with itself is one call, and a singular value decomposition costs nothing.
_NARROW = 256
# Rows of such a product at a time: few enough that little is computed twice, and a width that libraries are good at.
_STEP = 96
# Rows that show most of the columns which are not zero.
_GLIMPSE = 128
# With fewer columns in use than this part, those of zeros (dead features) are left out of a product with itself.
_MOST_USED = 0.95


def _describe(name: str, matrix: Tensor) -> str:
    finite = bool(torch.isfinite(matrix).all())
    size = " × ".join(map(str, matrix.shape))
    scale = f"largest entry {matrix.abs().max().item():.3g}" if finite and matrix.numel() else "entries not finite"
    return f"{name} ({size}, {str(matrix.dtype).removeprefix('torch.')}, {scale})"


def eigh(name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (descending, clamped at 0) and eigenvectors of a positive semi-definite matrix."""
    try:
        if not (math.isfinite(float(matrix.sum())) or bool(torch.isfinite(matrix).all())):  # a finite sum is proof
            raise RuntimeError("not finite")
        values, vectors = torch.linalg.eigh(matrix)  # reads the lower triangle
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


def used_columns(matrix: Tensor) -> Tensor:
    """The numbers of those that are not zero in all rows; most show in the first ones."""
    sizes = matrix[:_GLIMPSE].abs().sum(dim=0)
    unseen = (sizes == 0).nonzero().flatten()
    if len(unseen):
        sizes[unseen] = columns(matrix, unseen).abs().sum(dim=0)
    return sizes.nonzero().flatten()


def columns(matrix: Tensor, used: Tensor) -> Tensor:
    """Some of them. `index_select` along the last of four dimensions takes ten times as long."""
    return matrix.gather(-1, used.expand(*matrix.shape[:-1], -1))


def gram(*parts: Tensor, is_lower: bool = False) -> Tensor:
    """matrixᵀ matrix in float64, symmetric to the bit, of a matrix that may be given as parts of its rows.

    Of a wide one half is computed, of a lower triangle a sixth, and columns of zeros cost nothing, not even to be made
    float64, as one part after the other is.
    """
    assert len(parts) == 1 or not is_lower  # a part of a triangle is none
    first, width = parts[0], parts[0].shape[-1]
    if first.dim() > 2 or width <= _NARROW:
        matrix = in_float64(first if len(parts) == 1 else torch.cat(parts))
        return from_lower(matrix.mT @ matrix)
    used = None if first.is_meta or is_lower else _used_in_any(parts)
    if used is not None and len(used) >= _MOST_USED * width:
        used = None
    product: Tensor | None = None
    for part in parts:
        matrix = in_float64(part if used is None else columns(part, used))
        size = matrix.shape[1]
        product = matrix.new_zeros(size, size) if product is None else product
        for start in range(0, size, _STEP):
            stop, below = min(start + _STEP, size), matrix[start:] if is_lower else matrix
            product[start:stop, :stop].addmm_(below[:, start:stop].mT, below[:, :stop])
    assert product is not None
    product = from_lower(product)
    if used is None:
        return product
    whole, used = product.new_zeros(width, width), used.to(product.device)
    whole[used.unsqueeze(1), used] = product
    return whole


def _used_in_any(parts: Sequence[Tensor]) -> Tensor:
    """The numbers of columns that are not zero in all rows of all parts."""
    is_used = torch.zeros(parts[0].shape[1], dtype=torch.bool, device=parts[0].device)
    for part in parts:
        is_used[used_columns(part)] = True
    return is_used.nonzero().flatten()


def lower_product(triangle: Tensor, matrix: Tensor) -> Tensor:
    """triangle matrix, for a lower triangle: zeros above its diagonal are not multiplied."""
    starts, step = range(0, max(1, triangle.shape[-1]), _STEP), _STEP
    rows = [triangle[..., start : start + step, : start + step] @ matrix[..., : start + step, :] for start in starts]
    return torch.cat(rows, dim=-2)


def from_lower(product: Tensor) -> Tensor:
    """The lower triangle on both sides: the upper one may not be there, or be rounded differently."""
    return product.tril() + product.tril(-1).mT


def num_sure(s: Tensor) -> int:
    """How many singular values, descending and from a Gram matrix, have directions good to eight digits."""
    return int((s > _SURE * s[..., :1]).sum(dim=-1).min()) if s.numel() else 0


def rough(s: Tensor) -> Tensor:
    """The same, no smaller than what a Gram matrix resolves."""
    return s.clamp_min(_GRAM_RESOLUTION * float(s.max())) if s.numel() else s


@dataclass(frozen=True)
class Rotation:
    """O = [I, upper; left, corner]: it turns the last t of k directions among themselves and out of the first ones."""

    upper: Tensor  # (k − t, t), small
    left: Tensor  # (t, k − t), small
    corner: Tensor  # (t, t)

    def applied(self, matrix: Tensor) -> Tensor:
        """matrix O."""
        h, turned = self.upper.shape[-2], matrix.new_empty(matrix.shape)  # laid out as a file has it
        one_for_all = self.left.dim() == 2
        add: Callable[..., Tensor] = torch.addmm if one_for_all else torch.baddbmm
        flat, out = (matrix.flatten(0, -2), turned.flatten(0, -2)) if one_for_all else (matrix, turned)
        head, tail = flat[..., :h], flat[..., h:]
        add(head, tail, self.left, out=out[..., :h])
        out[..., h:] = add(tail @ self.corner, head, self.upper)
        return turned

    def between(self, s: Tensor, refined: Tensor) -> "Rotation":
        """diag(s) O diag(1/s'), where s and s' differ in their last t values only."""
        h = self.upper.shape[-2]
        s1, s2, last = s[..., :h], s[..., h:], refined[..., h:]
        return Rotation(
            s1.unsqueeze(-1) * self.upper / last.unsqueeze(-2),
            s2.unsqueeze(-1) * self.left / s1.unsqueeze(-2),
            s2.unsqueeze(-1) * self.corner / last.unsqueeze(-2),
        )


def refined_rotation(name: str, s: Tensor, UtU: Tensor) -> tuple[Rotation, Tensor]:
    """O and s' so that the columns of X O are orthogonal, of lengths s', when those of X are only nearly.

    X = U diag(s) in the eigenvectors of XᵀX, a product that has squared the condition of X: of the k columns of U the
    first h = k − t are orthonormal to eight digits, the last may be anything. UtU = UᵀU₂ (k, t) belongs to these. With
    E = U₁ᵀU₂ and G = diag(1/s₁) E diag(s₂), which is small,

        X₂ − X₁G = (U₂ − U₁E) diag(s₂)   is orthogonal to X₁,   (U₂ − U₁E)ᵀ(U₂ − U₁E) = U₂ᵀU₂ − EᵀE = RᵀR,

    and R diag(s₂) = P diag(s₂') O₂ᵀ is small and not squared: all as exact as from a QR of X.
    """
    h = UtU.shape[-2] - UtU.shape[-1]
    E, s1, s2 = UtU[..., :h, :], s[..., :h], s[..., h:]
    _, refined, O2t = svd(name, psd_root(name, UtU[..., h:, :] - E.mT @ E) * s2.unsqueeze(-2))
    G, O2 = E * s2.unsqueeze(-2) / s1.unsqueeze(-1), O2t.mT
    return Rotation(-G @ O2, G.mT, O2), torch.cat([s1, refined], dim=-1)


def right_singular(name: str, matrix: Tensor, is_lower: bool = False) -> tuple[Tensor, Tensor]:
    """Singular values, descending, and Oᵀ. Of a wide matrix, columns of zeros (dead features) keep their directions.

    A lower triangle, without zeros on its diagonal, costs less.
    """
    width = matrix.shape[-1]
    if width <= _NARROW:
        values, V = eigh(name, matrix.mT @ matrix)
        if num_sure(values.sqrt()) == width:
            return values.sqrt(), V.mT
        _, s, Ot = svd(name, matrix)
        return s, Ot
    used = None if is_lower else (matrix != 0).flatten(0, -2).any(dim=0)
    part = matrix if used is None else matrix[..., used]
    squares = [gram(one, is_lower=is_lower) for one in (part if part.dim() == 3 else [part])]
    values, V = eigh(name, squares[0] if matrix.dim() == 2 else torch.stack(squares))
    s = values.sqrt()
    if (sure := num_sure(s)) < s.shape[-1]:
        scale = rough(s)
        U2 = part @ (V[..., sure:] / scale[..., None, sure:])
        rotation, s = refined_rotation(name, scale, V.mT @ (part.mT @ U2) / scale.unsqueeze(-1))
        V = rotation.applied(V)
    if used is None or part.shape[-1] == width:
        return s, V.mT
    Ot = matrix.new_zeros(*matrix.shape[:-2], width, width)
    Ot[..., : s.shape[-1], used] = V.mT
    Ot[..., torch.arange(s.shape[-1], width, device=used.device), (~used).nonzero().flatten()] = 1
    return torch.nn.functional.pad(s, (0, width - s.shape[-1])), Ot
