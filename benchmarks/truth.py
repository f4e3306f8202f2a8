"""What L and the variances really are: literal algebra in float64, on a float64 copy. Shares no code with richbll.

Gradients are taken one example at a time by vmap(grad); with Φ^r = U diag(s) Qᵀ the projection is
A = Φ^mᵀ U diag(s/(s² + λ)) Qᵀ. Where the Jacobian would be too large, the layers are all linear and
Φ^mΦ^mᵀ = Σ_layers (a aᵀ + 1) ∘ (g gᵀ), a the layer's inputs and g the gradients by its outputs.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

_ROWS = 32  # of a Jacobian at a time


@dataclass(frozen=True)
class Truth:
    """Of one network, its data and its held-out inputs; all float64."""

    AtA: Tensor  # (r, r)
    rich: Tensor  # (n,) epistemic variance at the held-out inputs
    plain: Tensor  # (n,) that of the plain Bayesian last layer
    ridge: float  # λ
    rank: int  # directions of Φ^r above 1e-7 of the largest

    @property
    def added(self) -> Tensor:
        """What rich adds over plain."""
        return self.rich - self.plain


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer in order of registration."""
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]


def last_layer_features(model: nn.Module, x: Tensor) -> Tensor:
    """Φ^r (n, r): what enters the last layer, and 1 for its bias."""
    seen: list[Tensor] = []
    _, layer = last_linear(model)
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        for part in torch.split(x, _ROWS):
            model(part)
    handle.remove()
    a = torch.cat(seen)
    return torch.cat([a, torch.ones_like(a[:, :1])], dim=1)


def other_parameters(model: nn.Module) -> dict[str, Tensor]:
    """All but the last layer's."""
    name, _ = last_linear(model)
    return {key: p.detach() for key, p in model.named_parameters() if key not in (f"{name}.weight", f"{name}.bias")}


def example_gradients(model: nn.Module, x: Tensor, num_rows: int = _ROWS) -> Iterator[Tensor]:
    """Φ^m (n', m), some rows at a time."""
    parameters = other_parameters(model)
    constants = {name: p.detach() for name, p in model.named_parameters()}

    def output(values: dict[str, Tensor], example: Tensor) -> Tensor:
        result: Tensor = functional_call(model, constants | values, (example.unsqueeze(0),)).squeeze()
        return result

    for part in torch.split(x, num_rows):
        found = vmap(grad(output), in_dims=(None, 0))(parameters, part)
        yield torch.cat([g.reshape(len(part), -1) for g in found.values()], dim=1)


def kernel_of_linear_layers(model: nn.Module, x: Tensor) -> Tensor:
    """Φ^mΦ^mᵀ (N, N) of a plain stack of linear layers and activations."""
    _, last = last_linear(model)
    seen: list[tuple[Tensor, Tensor]] = []
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer is not last]
    handles = [layer.register_forward_hook(lambda _, a, z: seen.append((a[0].detach(), z))) for layer in layers]
    f = model(x)
    for handle in handles:
        handle.remove()
    K = torch.zeros(len(x), len(x), dtype=torch.float64)
    by_outputs = torch.autograd.grad(f.sum(), [z for _, z in seen])
    for (a, _), g in zip(seen, by_outputs, strict=True):
        K += (a @ a.mT + 1) * (g @ g.mT)
    return K


def second_moment(model: nn.Module, x: Tensor, U: Tensor, by_kernel: bool) -> Tensor:
    """H = Uᵀ Φ^m Φ^mᵀ U."""
    if by_kernel:
        return U.mT @ kernel_of_linear_layers(model, x) @ U
    C = torch.zeros(sum(p.numel() for p in other_parameters(model).values()), U.shape[1], dtype=torch.float64)
    for rows, phi_m in zip(torch.split(U, _ROWS), example_gradients(model, x), strict=True):
        C.addmm_(phi_m.mT, rows)
    return C.mT @ C


def variance(AtA: Tensor, gram: Tensor, phi: Tensor, noise_variance: float) -> Tensor:
    """φᵀ L (I + LᵀΦ^rᵀΦ^rL/σ²)⁻¹ Lᵀ φ with L Lᵀ = I + AᵀA."""
    identity = torch.eye(len(gram), dtype=torch.float64)
    L = torch.linalg.cholesky(identity + AtA)
    root = torch.linalg.cholesky(identity + L.mT @ gram @ L / noise_variance)
    return torch.linalg.solve_triangular(root, (phi @ L).mT, upper=False).square().sum(dim=0)


def true_posterior(
    model: nn.Module, x: Tensor, x_new: Tensor, noise_variance: float, relative_ridge: float, by_kernel: bool
) -> Truth:
    """The truth with λ so many times the largest eigenvalue of Φ^rᵀΦ^r."""
    model = copy.deepcopy(model).double().eval()
    x, x_new = x.double(), x_new.double()
    phi, phi_new = last_layer_features(model, x), last_layer_features(model, x_new)
    U, s, Qt = torch.linalg.svd(phi, full_matrices=False)
    ridge = relative_ridge * float(s[0]) ** 2
    w = s / (s.square() + ridge)
    AtA = Qt.mT @ (w.unsqueeze(1) * second_moment(model, x, U, by_kernel) * w) @ Qt
    gram = phi.mT @ phi
    rich, plain = (variance(matrix, gram, phi_new, noise_variance) for matrix in (AtA, torch.zeros_like(AtA)))
    return Truth(AtA, rich, plain, ridge, rank=int((s > 1e-7 * s[0]).sum()))
