"""A fitted posterior as one frozen value: what the data left, and the scales chosen for it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

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
    """From the last layer's input to the epistemic variance: one matrix product and a row sum per output."""

    V: Tensor

    def __init__(self, fitted: Fitted, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._last_layer = fitted.last_layer
        self.register_buffer("V", fitted.covariance_root().to(device=device, dtype=dtype))

    def features(self, a: Tensor) -> Tensor:
        """φ^r in the precision of the head, float32 at least."""  # (n, r)
        return self._last_layer.features(a.to(self.V.dtype))

    def forward(self, a: Tensor) -> Tensor:
        """Epistemic variance."""  # (n, c)
        return variance(self.features(a), self.V)


def head_for(fitted: Fitted, a: Tensor) -> UncertaintyHead:
    """The head in the device and precision of a last-layer input, at least float32."""
    return UncertaintyHead(fitted, torch.promote_types(a.dtype, torch.float32), a.device)
