"""A fitted posterior as one frozen value: what the data left, and the scales chosen for it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from richbll.core.moments import Moments
from richbll.core.posterior import (
    SpectralPosterior,
    gram_root,
    posterior_root,
    spectral_posterior,
    variance,
)
from richbll.core.projection import Projection
from richbll.core.transform import transform
from richbll.network.last_layer import LastLayer

_MOST_ELEMENTS = 2**24  # of Z at a time: 64 MiB in float32


@dataclass(frozen=True)
class Fitted:
    """Everything that `predict` needs besides the model. Changing a scale gives a new value."""

    last_layer: LastLayer
    parameter_names: tuple[str, ...]
    moments: Moments
    projection: Projection
    ridge: float
    posterior: SpectralPosterior
    noise_variance: Tensor  # (c,) σ²
    prior_variance: Tensor  # (c,) τ²

    def with_ridge(self, ridge: float) -> "Fitted":
        """The posterior for another ridge: O(r³), the data is not read again."""
        return replace(self, ridge=ridge, posterior=posterior_for(self.projection, self.moments, ridge))

    def covariance_root(self) -> Tensor:
        """V with V Vᵀ the posterior covariance of the last layer's weights, in float64."""  # (c, r, r)
        return posterior_root(self.posterior, self.noise_variance, self.prior_variance)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for files and devices."""
        named = {
            "gram_projection": self.moments.gram_projection,
            "Q": self.projection.spectrum.Q,
            "s": self.projection.spectrum.s,
            "H": self.projection.H,
            "trace_m": self.projection.trace_m,
            "W": self.posterior.W,
            "eigenvalues": self.posterior.eigenvalues,
            "noise_variance": self.noise_variance,
            "prior_variance": self.prior_variance,
            "constant": self.last_layer.constant,
        }
        if self.moments.residual_sq is not None:
            named["residual_sq"] = self.moments.residual_sq
        return named

    def with_tensors(self, named: dict[str, Tensor]) -> "Fitted":
        """The same value with other tensors under the names of `tensors`."""
        return replace(
            self,
            last_layer=replace(self.last_layer, constant=named["constant"]),
            moments=replace(
                self.moments, gram_projection=named["gram_projection"], residual_sq=named.get("residual_sq")
            ),
            projection=Projection(
                replace(self.projection.spectrum, Q=named["Q"], s=named["s"]), named["H"], named["trace_m"]
            ),
            posterior=SpectralPosterior(named["W"], named["eigenvalues"]),
            noise_variance=named["noise_variance"],
            prior_variance=named["prior_variance"],
        )


def posterior_for(projection: Projection, moments: Moments, ridge: float) -> SpectralPosterior:
    """Projection → L → spectral posterior."""
    root = gram_root(projection.spectrum, moments.row_weight)
    return spectral_posterior(transform(projection, ridge), root)


class UncertaintyHead(nn.Module):
    """From the last layer's input a to Z = φ^r V and the epistemic variance, in one matrix product.

    φ^r = (α a, β), so Z is linear in a: the factors and the bias are folded into a weight and a bias of its own.
    """

    weight: Tensor  # (c·r, d)  α Vᵀ, the rows of V that belong to a
    bias: Tensor  # (c·r,)    β times the row of V that belongs to the last layer's bias, or 0

    def __init__(self, fitted: Fitted, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        layer, V = fitted.last_layer, fitted.covariance_root()
        d = layer.num_inputs
        weight = layer.weight_factor * V[:, :d].mT
        bias = layer.bias_factor * V[:, d] if layer.has_bias else torch.zeros_like(V[:, 0])
        self.register_buffer("weight", weight.flatten(0, 1).to(device=device, dtype=dtype))
        self.register_buffer("bias", bias.flatten().to(device=device, dtype=dtype))
        self._shape = (layer.num_outputs, layer.num_features)

    def whitened(self, a: Tensor) -> Tensor:
        """Z = φ^r V, in float32 at least."""  # (n, c, r)
        return linear(a.to(self.weight.dtype), self.weight, self.bias).view(-1, *self._shape)

    def forward(self, a: Tensor) -> Tensor:
        """Epistemic variance."""  # (n, c)
        return variance(self.whitened(a))

    def in_parts(self, a: Tensor) -> Tensor:
        """The same for any number of rows: Z is never larger than a fixed number of elements."""
        rows = max(1, _MOST_ELEMENTS // len(self.bias))
        return self(a) if len(a) <= rows else torch.cat([self(part) for part in torch.split(a, rows)])


def head_for(fitted: Fitted, a: Tensor) -> UncertaintyHead:
    """The head in the device and precision of a last-layer input, at least float32."""
    return UncertaintyHead(fitted, torch.promote_types(a.dtype, torch.float32), a.device)
