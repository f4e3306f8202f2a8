"""The spectrum of gradients at N points, and how much of it the last layer's features reach."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from richbll_bench.ntk_gp import parameter_gradients

_NEGLIGIBLE = 1e-7  # of the largest singular value: below it a direction of the features is rounding


@dataclass(frozen=True)
class Features:
    """Gradients of an output at N points: by the last layer's weights, and, as their kernel, by all others."""

    phi_r: Tensor  # (N, r) what the method projects onto
    other: Tensor  # (N, N) Φ^mΦ^mᵀ
    last: Tensor  # (N, N) of the gradients by the last layer's weights
    num_other: int  # m

    @property
    def kernels(self) -> dict[str, Tensor]:
        """The empirical NTK and its two parts."""  # (N, N) each
        return {"ntk": self.other + self.last, "other_layers": self.other, "last_layer": self.last}


def features(model: nn.Sequential, x: Tensor) -> Features:
    """In float64, of a network with one output whose last module is its last layer."""
    num_last = sum(p.numel() for p in model[-1].parameters())
    phi_p = parameter_gradients(model, x)  # (N, p), in the order of the parameters
    phi_m, phi_r = phi_p[:, :-num_last], phi_p[:, -num_last:]
    return Features(phi_r, phi_m @ phi_m.mT, phi_r @ phi_r.mT, phi_m.shape[1])


def residual(found: Features) -> float:
    """‖(I − P_r) Φ^m‖ / ‖Φ^m‖ in the Frobenius norm, P_r the projector onto the span of Φ^r: ε of the appendix."""
    U, s, _ = torch.linalg.svd(found.phi_r, full_matrices=False)
    U = U[:, s > _NEGLIGIBLE * s[0]]  # (N, ρ)
    inside = (U * (found.other @ U)).sum()  # tr(Uᵀ Φ^mΦ^mᵀ U)
    return float((1 - inside / found.other.trace()).clamp_min(0).sqrt())


def best_residual(found: Features) -> float:
    """The same for the best r directions there are: those of the largest eigenvalues of Φ^mΦ^mᵀ."""
    values = eigenvalues(found.other)
    return float((values[found.phi_r.shape[1] :].sum() / values.sum()).sqrt())


def eigenvalues(kernel: Tensor) -> Tensor:
    """Descending; what rounding made negative is 0."""  # (N,)
    return torch.linalg.eigvalsh(kernel).flip(0).clamp_min(0)


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the eigenvalues' shares: how many equal ones would be as spread.

    Examples:
        >>> round(effective_rank(torch.tensor([1.0, 1.0, 1.0, 0.0])), 4)
        3.0
    """
    return float(torch.special.entr(values / values.sum()).sum().exp())


def num_for(values: Tensor, share: float) -> int:
    """How many eigenvalues hold that share of the trace.

    Examples:
        >>> num_for(torch.tensor([6.0, 3.0, 1.0]), 0.8)
        2
    """
    return int((values.cumsum(0) / values.sum() < share).sum()) + 1
