"""The slow truth: the paper's formulas, literally, in float64, with N × N kernels. Imports nothing of richbll.

Gradients are taken one scalar at a time by autograd on a float64 copy of the model; A is a least-squares solution by
singular value decomposition; posteriors are Gaussian-process conditioning.
"""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Jacobians:
    """Φ^r (c, n, r), Φ^m (c, n, m) and f (n, c) of some inputs."""

    phi_r: np.ndarray
    phi_m: np.ndarray
    f: np.ndarray


def jacobians(model: nn.Module, last_layer: str, inputs: tuple, others=None) -> Jacobians:
    """Every gradient of every output at every input, one autograd call each."""
    model = copy.deepcopy(model).double().eval()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    layer = model.get_submodule(last_layer)
    own = [layer.weight] + ([layer.bias] if layer.bias is not None else [])
    keep = (lambda name, p: p.requires_grad) if others is None else (lambda name, p: others(name))
    rest = [p for name, p in model.named_parameters() if keep(name, p) and not any(p is q for q in own)]
    for p in [*own, *rest]:
        p.requires_grad_(True)
    with torch.enable_grad():
        f = model(*inputs)
        f = (f if isinstance(f, torch.Tensor) else f.logits).reshape(len(inputs[0]), -1)
    n, c = f.shape
    rows_r, rows_m = [], []
    for k in range(c):
        for i in range(n):
            grads = torch.autograd.grad(f[i, k], [*own, *rest], retain_graph=True, materialize_grads=True)
            grads = [g.to_dense() for g in grads]
            weight = grads[0][k]
            bias = [grads[1][k].reshape(1)] if len(own) == 2 else []
            rows_r.append(torch.cat([weight, *bias]))
            rows_m.append(torch.cat([g.reshape(-1) for g in grads[len(own) :]]) if rest else torch.zeros(0).double())
    return Jacobians(
        phi_r=torch.stack(rows_r).reshape(c, n, -1).numpy(),
        phi_m=torch.stack(rows_m).reshape(c, n, -1).numpy(),
        f=f.detach().numpy(),
    )


def ridge_floor(phi_r: np.ndarray, cutoff: float = 1e-7) -> float:
    """The default ridge: 0, or a thousandth of the largest eigenvalue with fewer than two rows per direction."""
    s = np.linalg.svd(phi_r, compute_uv=False)
    rank = int((s > cutoff * s[0]).sum())
    return 1e-3 * s[0] ** 2 if len(phi_r) < 2 * rank else 0.0


def projection(phi_r: np.ndarray, phi_m: np.ndarray, ridge: float, cutoff: float = 1e-7) -> np.ndarray:
    """A (m, r) = Φ^mᵀ Φ^r (Φ^rᵀΦ^r + λI)⁺ with directions below the cut-off left out."""
    P, s, Qt = np.linalg.svd(phi_r, full_matrices=False)
    kept = s > cutoff * s[0]
    P, s, Qt = P[:, kept], s[kept], Qt[kept]
    return phi_m.T @ P @ np.diag(s / (s**2 + ridge)) @ Qt


def gp_covariance(k_xx: np.ndarray, k_sx: np.ndarray, k_ss: np.ndarray, sigma2: float) -> np.ndarray:
    """k** − k*x (kxx + σ²I)⁻¹ kx*."""
    return k_ss - k_sx @ np.linalg.solve(k_xx + sigma2 * np.eye(len(k_xx)), k_sx.T)


def rich_covariance(train_r, train_m, test_r, sigma2, tau2=1.0, ridge=0.0, weight=1.0) -> np.ndarray:
    """S^B of the paper's section 3.2 for one output; `weight` is N/k (each row stands for that many)."""
    A = projection(train_r, train_m, ridge)
    B = np.vstack([A, np.eye(train_r.shape[1])])
    x, xs = train_r @ B.T, test_r @ B.T
    return gp_covariance(tau2 * x @ x.T, tau2 * xs @ x.T, tau2 * xs @ xs.T, sigma2 / weight)


def plain_covariance(train_r, test_r, sigma2, tau2=1.0, weight=1.0) -> np.ndarray:
    """S^bll for one output."""
    return gp_covariance(
        tau2 * train_r @ train_r.T, tau2 * test_r @ train_r.T, tau2 * test_r @ test_r.T, sigma2 / weight
    )


def ntk_covariance(train_r, train_m, test_r, test_m, sigma2) -> np.ndarray:
    """S^ntk, the full network's Gaussian process, for one output."""
    x, xs = np.hstack([train_m, train_r]), np.hstack([test_m, test_r])
    return gp_covariance(x @ x.T, xs @ x.T, xs @ xs.T, sigma2)
