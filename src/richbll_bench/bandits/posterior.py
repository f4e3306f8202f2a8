"""The posterior of Rich-BLL and BLL on the agents' network, in a few milliseconds: what `richbll.RichBLL` computes.

With k rows for the projection, P = Φ^r (Φ^rᵀΦ^r + λI)⁻¹ (k, r) and the kernel of the gradients by all other weights,

    K(x, x') = δ₁·δ₁' (n x·x' + 1) + δ₂·δ₂' (a₁·a₁' + 1),   AᵀA = Pᵀ K P,   L Lᵀ = I + AᵀA,

and with G = Σ φ^r φ^rᵀ / σ² over all rows, or N/k times that over some of them,

    M = I + τ² Lᵀ G L = C Cᵀ,   V = τ L C⁻ᵀ,   V Vᵀ the covariance of the last layer's weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll_bench.bandits.network import Network, with_one

_CHUNK = 4096  # rows whose activations stay in the cache


@dataclass(frozen=True)
class Rows:
    """What gradients at some inputs are made of."""

    x: Tensor  # (n, d)
    a1: Tensor  # (n, width)
    delta1: Tensor
    delta2: Tensor
    phi: Tensor  # (n, r), float64


def rows_of(network: Network, x: Tensor) -> Rows:
    """One forward and one backward pass."""
    a1, a2 = network.hidden(x)
    return Rows(x, a1, *network.deltas(a1, a2), with_one(network.width**-0.5 * a2).double())


def gradient_kernel(network: Network, one: Rows, other: Rows) -> Tensor:
    """K = φ^m φ^mᵀ, layer by layer."""  # (n, n')
    unit = torch.ones((), dtype=one.x.dtype)
    K = torch.addmm(unit, one.x, other.x.mT, alpha=network.width).mul_(one.delta1 @ other.delta1.mT)
    return K.add_(torch.addmm(unit, one.a1, other.a1.mT).mul_(one.delta2 @ other.delta2.mT))


def transform(network: Network, x: Tensor, ridge: float, scale: float = 1.0) -> Tensor:
    """L from the rows x (k, d); `scale` multiplies the features."""  # (r, r)
    rows = rows_of(network, x)
    K = gradient_kernel(network, rows, rows)
    phi = scaled(rows.phi, scale)
    identity = torch.eye(phi.shape[1], dtype=phi.dtype)
    P = torch.cholesky_solve(phi.mT, torch.linalg.cholesky(phi.mT @ phi + ridge * identity)).mT
    AtA = P.mT @ (K @ P.to(K.dtype)).double()
    return root_beside_identity((AtA + AtA.mT) / 2)


def root_beside_identity(AtA: Tensor) -> Tensor:
    """L with L Lᵀ = I + AᵀA. With a small ridge P is large, and AᵀA of a K in float32 may have negative eigenvalues."""
    identity = torch.eye(len(AtA), dtype=AtA.dtype)
    L, failed = torch.linalg.cholesky_ex(identity + AtA)
    if not failed:
        return L
    values, Q = torch.linalg.eigh(AtA)
    return torch.linalg.cholesky(identity + (Q * values.clamp_min(0)) @ Q.mT)  # (r, r)


def gram(network: Network, x: Tensor, weight: Callable[[Tensor, slice], Tensor], scale: float = 1.0) -> Tensor:
    """Σ weight φ^r φ^rᵀ over the rows x (N, d); `weight` gives those (n,) of a slice of them, with φ^r (n, r)."""
    total = torch.zeros(network.width + 1, network.width + 1, dtype=torch.float64)
    for start in range(0, len(x), _CHUNK):
        rows = slice(start, start + _CHUNK)
        phi = network.features(x[rows]).double()  # in float32 the sum might be indefinite
        phi = scaled(phi, scale) * weight(phi, rows).sqrt().unsqueeze(1)
        total.addmm_(phi.mT, phi)
    return total  # (r, r) float64


def posterior_root(L: Tensor, gram: Tensor, tau2: float) -> tuple[Tensor, float]:
    """V, and γ = r − tr M⁻¹, the number of directions that the data determines; the gram is already over σ²."""
    identity = torch.eye(len(L), dtype=L.dtype)
    M = identity + tau2 * L.mT @ gram @ L
    C = torch.linalg.cholesky((M + M.mT) / 2)
    inverse = torch.linalg.solve_triangular(C, identity, upper=False)  # C⁻¹
    return tau2**0.5 * L @ inverse.mT, len(L) - float(inverse.square().sum())


def scaled(phi: Tensor, scale: float) -> Tensor:
    """(s a, 1) of (a, 1): the same last layer with weights divided by s."""  # (n, r)
    return phi if scale == 1.0 else torch.cat([scale * phi[:, :-1], phi[:, -1:]], dim=1)
