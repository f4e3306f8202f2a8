"""The empirical neural tangent kernel at some points, exactly."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from richbll.network.batches import Stream
from richbll.network.gradients import blocks_of
from richbll.network.network import Network
from richbll.precision import float64_device, in_float64


@dataclass(frozen=True)
class PointKernel:
    """Features and the Gram matrix of gradients at n points, for one output per example."""

    phi_r: Tensor  # (n, r)
    K_m: Tensor  # (n, n)  Φ^mΦ^mᵀ

    @property
    def K_p(self) -> Tensor:
        """The eNTK matrix Φ^pΦ^pᵀ = Φ^mΦ^mᵀ + Φ^rΦ^rᵀ."""  # (n, n)
        return self.K_m + self.phi_r @ self.phi_r.mT

    def spectral_residual(self) -> float:
        """‖(I − P_r) Φ^m‖₂ / ‖Φ^m‖₂: the paper's ε_x, made relative."""
        P, s, _ = torch.linalg.svd(self.phi_r, full_matrices=False)
        P = P[:, s > 1e-7 * s[0]]
        outside = self.K_m - P @ (P.mT @ self.K_m)
        outside = outside - (outside @ P) @ P.mT
        total = torch.linalg.eigvalsh(self.K_m)[-1]
        largest = torch.linalg.eigvalsh((outside + outside.mT) / 2)[-1]
        return float((largest.clamp_min(0) / total).sqrt()) if total > 0 else 0.0

    def spectrum(self) -> Tensor:
        """Eigenvalues of the eNTK matrix, descending."""  # (n,)
        return torch.linalg.eigvalsh(self.K_p).flip(0).clamp_min(0)


def point_kernel(network: Network, stream: Stream, most_points: int, memory: int) -> PointKernel:
    """Read at most so many points; parameters are taken in blocks that fit a quarter of the memory."""
    batches: list[Any] = []
    count = 0
    for batch in stream.batches("points"):
        batches.append(batch.rows(slice(0, most_points - count)).copied())
        count += batches[-1].size
        if count >= most_points:
            break
    read = [network.features(batch) for batch in batches]
    K_m = torch.zeros(count, count, dtype=torch.float64, device=float64_device(network.device))
    reader = network.gradients()
    blocks = blocks_of(network.parameter_sizes, max(1, memory // 4 // (8 * count)))
    for block in blocks:
        rows = []
        for batch, (_, f) in zip(batches, read, strict=True):
            columns = network.reader.read(batch, f).columns
            first = torch.zeros(batch.size, dtype=torch.int64, device=f.device)
            chosen = first if columns is None else columns
            parts = reader.micro_batches(batch, f, block, memory // 4, chosen)
            rows += [in_float64(phi_m[:, 0]) for _, phi_m in parts]
        phi_m = torch.cat(rows)  # (n, m')
        K_m += phi_m @ phi_m.mT
    return PointKernel(torch.cat([in_float64(phi_r) for phi_r, _ in read]), K_m)
