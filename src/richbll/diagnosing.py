"""From a fitted posterior and some points to a diagnosis."""

from typing import Any

import torch
from torch import nn

from richbll.core.bounds import feature_scale, relative_subsample_error, subsampled_posterior
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
    phi = points.phi_r
    rich = variance(torch.einsum("nr,grj->ngj", phi, fitted.covariance_root()))
    own = (torch.arange(phi.shape[1], device=phi.device) < layer.num_own).to(phi.dtype)
    plain = spectral_posterior(torch.diag(own), fitted.root)
    V = posterior_root(plain, fitted.noise_variance[: len(fitted.root)], fitted.prior_variance[: len(fitted.root)])
    plain_variance = variance(torch.einsum("nr,grj->ngj", phi, V))
    noise = fitted.noise_variance if options.is_regression and options.noise_function is None else 0 * rich
    gamma = effective_dimension(fitted.posterior, fitted.noise_variance, fitted.prior_variance)
    scale = feature_scale(phi @ fitted.transform()[0])
    k, r = fitted.moments.num_rows, layer.num_features
    explained = sum(float(p.H.diagonal(dim1=1, dim2=2).sum()) for p in fitted.projections)
    total = sum(float(p.trace_m.sum()) for p in fitted.projections)
    ratio = float((fitted.noise_variance / fitted.prior_variance).mean())
    share = advised_size(phi, ratio * len(phi) / fitted.moments.num_data, options.seed) / len(phi)
    return Diagnosis(
        num_points=len(phi),
        num_features=r,
        residual=max(0.0, 1 - explained / total) ** 0.5 if total else 0.0,
        spectral_residual=points.spectral_residual() if names else 0.0,
        spectrum=points.spectrum(),
        std_ratio=float(rich.sqrt().mean() / plain_variance.sqrt().mean()),
        epistemic_share=float((rich / (rich + noise)).mean()) if options.is_regression else 1.0,
        effective_dimension=float(gamma.mean()),
        rank=fitted.projections[0].spectrum.rank,
        subsample_bound=relative_subsample_error(k, scale.rank, scale.leverage, _DELTA),
        theorem_bound=subsampled_posterior(k, r, scale.K, scale.lambda_min, _DELTA),
        advised_subsample=fitted.moments.num_data if share == 1 else round(share * len(phi)),
        num_data=fitted.moments.num_data,
    )
