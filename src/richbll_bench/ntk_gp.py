"""The exact NTK-GP, which is the linearised Laplace approximation: what Rich-BLL approximates (equation 3).

    S(x*, x*) = k** − k*x (kxx + σ²I)⁻¹ kx*,   k(x, x') = τ² φ^p(x)ᵀ φ^p(x'),   φ^p(x) = ∇θ f(x), all parameters.

It keeps N × p gradients and an N × N factor, so it is for small networks and small data with one output.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from richbll import RegressionPredictive


@dataclass(frozen=True)
class NTKGP:
    """The posterior over functions around a trained network."""

    model: nn.Module
    noise_variance: float | Tensor  # σ², or one for every row (N,): 1/p(1 − p) for the logit of two classes
    prior_variance: float  # τ²
    phi_p: Tensor  # (N, p)
    chol: Tensor  # (N, N) lower, of kxx + σ²I

    def predict(self, x: Tensor) -> RegressionPredictive:
        """The network's mean and the posterior variance."""
        with torch.no_grad():
            mean = self.model(x).double()  # (n, 1)
        noise_variance = torch.tensor([float(self.noise_variance)], dtype=torch.float64)
        return RegressionPredictive(mean, self.variance(x).unsqueeze(-1), noise_variance)

    def variance(self, x: Tensor) -> Tensor:
        """The posterior variance of the output."""  # (n,)
        phi_p = parameter_gradients(self.model, x)  # (n, p)
        prior = self.prior_variance * phi_p.square().sum(dim=1)  # (n,)
        cross = self.prior_variance * self.phi_p @ phi_p.mT  # (N, n)
        explained = torch.linalg.solve_triangular(self.chol, cross, upper=False).square().sum(dim=0)  # (n,)
        return (prior - explained).clamp_min(0)  # a difference: rounding may leave −1e-16


def fit_ntk_gp(model: nn.Module, x: Tensor, *, noise_variance: float | Tensor, prior_variance: float = 1.0) -> NTKGP:
    """Condition on training inputs (N, d); the targets enter through the trained network alone."""
    phi_p = parameter_gradients(model, x)
    kernel = prior_variance * phi_p @ phi_p.mT  # (N, N)
    noise = torch.as_tensor(noise_variance, dtype=kernel.dtype).expand(len(x))
    chol = torch.linalg.cholesky(kernel + noise.diag())
    return NTKGP(model, noise_variance, prior_variance, phi_p, chol)


def parameter_gradients(model: nn.Module, x: Tensor) -> Tensor:
    """φ^p(x): the gradient of the one output by every parameter, per example, in float64."""  # (n, p)
    weights = {name: p.detach().double() for name, p in model.named_parameters()}

    def output(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, weights, (x.unsqueeze(0),)).squeeze()

    gradients = vmap(grad(output), in_dims=(None, 0))(weights, x.double())  # name → (n, *shape)
    return torch.cat([g.flatten(start_dim=1) for g in gradients.values()], dim=1)
