"""A fitted posterior as one frozen value: what the data left, and the scales chosen for it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from richbll.core.moments import Moments
from richbll.core.posterior import (
    SpectralPosterior,
    gram_root,
    posterior_in_basis,
    posterior_root,
    spectral_posterior,
    variance,
)
from richbll.core.projection import Projection
from richbll.core.transform import kept_factor, transform
from richbll.linalg import psd_root
from richbll.network.last_layer import LastLayer
from richbll.precision import float64_device, in_float64, no_autocast
from richbll.solvers.solution import Additive

_MOST_ELEMENTS = 2**24  # of Z at a time: 64 MiB in float32


@dataclass(frozen=True)
class Fitted:
    """Everything that `predict` needs besides the model. Changing a scale gives a new value."""

    last_layer: LastLayer
    parameter_names: tuple[str, ...]
    moments: Moments
    projections: tuple[Projection, ...]  # one (its H has one matrix per output), or one per class
    ridge: float
    root: Tensor  # (g, r, r) R with RᵀR the data term of each posterior
    posterior: SpectralPosterior
    noise_variance: Tensor  # (g,) σ²
    prior_variance: Tensor  # (g,) τ²
    pull: Tensor | None = None  # (g, r) b = Σ φ^r (y − f) over data that came after the fit
    num_added: int = 0  # how many examples came after the fit
    cross: Tensor | None = None  # (c, m or q, r) Φ^mᵀΦ^r or its sketch, kept by solvers that can add to it
    additive: Additive | None = None  # what can be added to it

    def with_ridge(self, ridge: float) -> "Fitted":
        """The posterior for another ridge: O(r³), the data is not read again."""
        num_own, weight = self.last_layer.num_own, self.moments.row_weight
        return replace(self, ridge=ridge, posterior=posterior_for(self.projections, self.root, ridge, num_own, weight))

    def transform(self) -> Tensor:
        """L for the ridge in use."""  # (g or 1, r, r)
        return stacked_transform(self.projections, self.ridge, self.last_layer.num_own)

    def covariance_root(self) -> Tensor:
        """V with V Vᵀ the posterior covariance of the last layer's weights, in float64."""  # (g, r, r)
        return posterior_root(self.posterior, self.noise_variance, self.prior_variance)

    def shift(self) -> Tensor | None:
        """Vᵀb/σ²: where data that came after the fit has pulled the mean, in the coordinates of Z."""  # (g, r)
        if self.pull is None:
            return None
        return (self.covariance_root().mT @ self.pull.unsqueeze(-1)).squeeze(-1) / self.noise_variance.unsqueeze(-1)

    def beside(self, values: Tensor) -> Tensor:
        """Values of the model's in float64 on the posterior's device, which need not be the model's."""
        return in_float64(values).to(self.posterior.W.device)

    def tensors(self, moments: bool = False) -> dict[str, Tensor]:
        """All tensors by name, for files and devices; with `moments`, also those that only more data needs."""
        named = {
            "gram_projection": self.moments.gram_projection,
            "root": self.root,
            "W": self.posterior.W,
            "eigenvalues": self.posterior.eigenvalues,
            "noise_variance": self.noise_variance,
            "prior_variance": self.prior_variance,
            "constant": self.last_layer.constant,
        }
        for number, projection in enumerate(self.projections):
            named[f"Q.{number}"] = projection.spectrum.Q
            named[f"s.{number}"] = projection.spectrum.s
            named[f"H.{number}"] = projection.H
            named[f"trace_m.{number}"] = projection.trace_m
        optional = {"residual_sq": self.moments.residual_sq, "pull": self.pull}
        if moments:
            optional |= {"gram_weighted": self.moments.gram_weighted, "cross": self.cross}
        return named | {name: tensor for name, tensor in optional.items() if tensor is not None}

    def to(self, device: torch.device) -> "Fitted":
        """The same value on a device, or on the CPU for one that has no float64."""
        device = float64_device(device)
        return self.with_tensors({name: tensor.to(device) for name, tensor in self.tensors(moments=True).items()})

    def with_tensors(self, named: dict[str, Tensor]) -> "Fitted":
        """The same value with other tensors under the names of `tensors`."""
        return replace(
            self,
            last_layer=replace(self.last_layer, constant=named["constant"]),
            moments=replace(
                self.moments,
                gram_projection=named["gram_projection"],
                gram_weighted=named.get("gram_weighted"),  # what a posterior needs of it is in the root
                residual_sq=named.get("residual_sq"),
            ),
            projections=tuple(
                Projection(
                    replace(projection.spectrum, Q=named[f"Q.{number}"], s=named[f"s.{number}"]),
                    named[f"H.{number}"],
                    named[f"trace_m.{number}"],
                )
                for number, projection in enumerate(self.projections)
            ),
            root=named["root"],
            posterior=SpectralPosterior(named["W"], named["eigenvalues"]),
            noise_variance=named["noise_variance"],
            prior_variance=named["prior_variance"],
            pull=named.get("pull"),
            cross=named.get("cross"),
        )


def stacked_transform(projections: tuple[Projection, ...], ridge: float, num_own: int) -> Tensor:
    """L of every projection: one per output, one per class, or one for all."""  # (g or 1, r, r)
    return torch.cat([transform(projection, ridge, num_own) for projection in projections])


def posterior_for(
    projections: tuple[Projection, ...], root: Tensor, ridge: float, num_own: int, row_weight: float
) -> SpectralPosterior:
    """Projection → L → spectral posterior.

    Where the data term is that of the rows which the projection was made from, each standing for `row_weight` examples,
    both are diagonal in the same basis, and no product of full size is needed.
    """
    spectrum = projections[0].spectrum
    own_rows = len(projections) == len(root) == 1 and torch.equal(root[0], gram_root(spectrum, row_weight))
    if own_rows and num_own == len(spectrum.Q):
        return posterior_in_basis(spectrum, kept_factor(projections[0], ridge), row_weight)
    return spectral_posterior(stacked_transform(projections, ridge, num_own), root)


def data_root(projections: tuple[Projection, ...], moments: Moments) -> Tensor:
    """R (g, r, r): from the refined spectrum of all rows where every weight is 1, else from Gram matrices."""
    if moments.gram_weighted is None and len(projections) == 1:
        return gram_root(projections[0].spectrum, moments.row_weight).unsqueeze(0)
    return psd_root("the weighted Gram matrix of the features", moments.gram_posterior)


class UncertaintyHead(nn.Module):
    """From the last layer's input a to Z = φ^r V and the epistemic variance, in one matrix product.

    φ^r = (α a, β), so Z is linear in a: the factors and the bias are folded into a weight and a bias of its own.
    """

    weight: Tensor  # (g·r, d)  α Vᵀ, the rows of V that belong to a
    bias: Tensor  # (g·r,)    β times the row of V that belongs to the last layer's bias, or 0
    shift: Tensor | None  # (g, r)   Vᵀb/σ²: where data that came later has pulled the mean

    def __init__(self, fitted: Fitted, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        layer, V, shift = fitted.last_layer, fitted.covariance_root(), fitted.shift()
        d = layer.num_inputs
        weight = layer.weight_factor * torch.cat([V[:, :d], V[:, layer.num_own :]], dim=1).mT
        bias = layer.bias_factor * V[:, d] if layer.has_bias else torch.zeros_like(V[:, 0])
        self.register_buffer("weight", weight.flatten(0, 1).to(device=device, dtype=dtype))
        self.register_buffer("bias", bias.flatten().to(device=device, dtype=dtype))
        self.register_buffer("shift", None if shift is None else shift.to(device=device, dtype=dtype))
        self._shape = (len(V), layer.num_features)

    def whitened(self, a: Tensor) -> Tensor:
        """Z = φ^r V, in float32 at least, also inside an autocast."""  # (n, g, r)
        with no_autocast(a.device):
            return linear(a.to(self.weight.dtype), self.weight, self.bias).view(-1, *self._shape)

    def mean(self, Z: Tensor, f: Tensor) -> Tensor:
        """f, moved by the data that came after the fit: f + Z Vᵀb/σ²."""  # (n, c)
        f = f.to(Z.dtype)
        return f if self.shift is None else f + (Z * self.shift).sum(dim=-1)

    def forward(self, a: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and epistemic variance."""  # (n, c), (n, c)
        mean, epistemic = self._of_rows(a, f)
        return mean, epistemic.expand(f.shape)

    def in_parts(self, a: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """The same for any number of rows: Z is never larger than a fixed number of elements."""
        rows = max(1, _MOST_ELEMENTS // len(self.bias))
        if len(a) <= rows:
            return self(a, f)
        parts = [self._of_rows(*part) for part in zip(torch.split(a, rows), torch.split(f, rows), strict=True)]
        epistemic = torch.cat([one for _, one in parts])
        return torch.cat([mean for mean, _ in parts]), epistemic.expand(f.shape)

    def _of_rows(self, a: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, c), and epistemic variance (n, g), which all outputs share where g is 1."""
        Z = self.whitened(a)
        return self.mean(Z, f), variance(Z)


def head_for(fitted: Fitted, a: Tensor) -> UncertaintyHead:
    """The head in the device and precision of a last-layer input, at least float32."""
    with torch.inference_mode(False):  # what is made here may be differentiated through later
        return UncertaintyHead(fitted, torch.promote_types(a.dtype, torch.float32), a.device)
