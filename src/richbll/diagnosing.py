"""From a fitted posterior and some points to a diagnosis."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from richbll.core.bounds import Bound, feature_scale, relative_subsample_error, subsampled_posterior
from richbll.core.posterior import effective_dimension, posterior_root, spectral_posterior, variance
from richbll.core.subsample import advised_size
from richbll.diagnostics.diagnosis import Diagnosis
from richbll.diagnostics.kernel import point_kernel
from richbll.fitted import Fitted
from richbll.fitting import device_of
from richbll.network.batches import Stream
from richbll.network.network import Network
from richbll.network.untouched import untouched
from richbll.options import Options

_MOST_POINTS = 2000
_DELTA = 0.05


def diagnose(model: nn.Module, data: Any, fitted: Fitted, options: Options) -> Diagnosis:
    """Measure the residual, the spectrum, rich against plain, and what a subsample would do."""
    layer, names = fitted.last_layer, fitted.parameter_names
    sizes = {name: model.get_parameter(name).numel() for name in names}
    network = Network(model, layer, sizes, options.reader(layer.num_outputs, layer.num_features))
    with untouched(model):
        points = point_kernel(network, Stream(data, device_of(model), options.progress), _MOST_POINTS, options.memory)
    phi = fitted.beside(points.phi_r)
    rich = variance(torch.einsum("nr,grj->ngj", phi, fitted.covariance_root()))
    own = (torch.arange(phi.shape[1], device=phi.device) < layer.num_own).to(phi.dtype)
    plain = spectral_posterior(torch.diag(own), fitted.root.expand(len(fitted.noise_variance), -1, -1))
    V = posterior_root(plain, fitted.noise_variance, fitted.prior_variance)
    plain_variance = variance(torch.einsum("nr,grj->ngj", phi, V))
    has_noise = options.is_regression and options.noise_function is None
    gamma = effective_dimension(fitted.posterior, fitted.noise_variance, fitted.prior_variance)
    scale = feature_scale(phi @ fitted.transform()[0] * fitted.prior_variance[0].sqrt())
    rank = max(projection.spectrum.rank for projection in fitted.projections)
    k, r = fitted.moments.num_rows, layer.num_features
    explained = sum(float(p.H.diagonal(dim1=1, dim2=2).sum()) for p in fitted.projections)
    total = sum(float(p.trace_m.sum()) for p in fitted.projections)
    bound = relative_subsample_error(k, scale.rank, scale.leverage, _DELTA)
    too_few = Bound(math.inf, f"{len(phi)} points span the {rank} directions of the features", holds=False)
    return Diagnosis(
        num_points=len(phi),
        num_features=r,
        residual=max(0.0, 1 - explained / total) ** 0.5 if total else 0.0,
        spectral_residual=points.spectral_residual() if names else 0.0,
        spectrum=points.spectrum(),
        std_ratio=float(rich.sqrt().mean() / plain_variance.sqrt().mean()),
        epistemic_share=float((rich / (rich + fitted.noise_variance)).mean()) if has_noise else None,
        effective_dimension=float(gamma.mean()),
        rank=rank,
        subsample_bound=bound if scale.rank >= rank else too_few,
        theorem_bound=subsampled_posterior(k, r, scale.K, scale.lambda_min, _DELTA) if scale.rank >= rank else too_few,
        advised_subsample=_advice(phi, fitted, options),
        num_data=fitted.moments.num_data,
    )


def _advice(phi: Tensor, fitted: Fitted, options: Options) -> int | None:
    """k for "auto", measured on these points; None when they are too few to tell."""
    N, r = fitted.moments.num_data, phi.shape[1]
    ratio = float((fitted.noise_variance / fitted.prior_variance).mean()) * len(phi) / N
    k = advised_size(phi, ratio, options.seed)
    if k < len(phi):
        return k
    return N if len(phi) >= min(N, 60 * r) else None
