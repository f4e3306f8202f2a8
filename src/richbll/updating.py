"""New data after the fit: exact conditioning, as a Gaussian process would do it.

With L fixed, the data term gains the new rows and the mean moves to f(x) + Z(x) Vᵀb/σ², b = Σ φ^r (y − f) over them.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from richbll.core.moments import Moments
from richbll.core.posterior import spectral_posterior
from richbll.errors import DataError, OptionError
from richbll.fitted import Fitted, data_root, posterior_for
from richbll.fitting import device_of, settled_ridge
from richbll.network.batches import Batch, Stream
from richbll.network.network import Network
from richbll.network.untouched import untouched
from richbll.options import Options
from richbll.solvers import cross as cross_solver
from richbll.solvers.sketch import Sketched
from richbll.solvers.solution import Additive, Solver


@torch.inference_mode(False)
def update(model: nn.Module, data: Any, fitted: Fitted, options: Options, refit: bool) -> Fitted:
    """Condition on more data; with `refit` the projection is estimated anew as well."""
    c, r = fitted.last_layer.num_outputs, fitted.last_layer.num_features
    sizes = {name: model.get_parameter(name).numel() for name in fitted.parameter_names}
    network = Network(model, fitted.last_layer, sizes, options.reader(c, r, per_class=len(fitted.root) > 1))
    with untouched(model):
        stream = Stream(data, device_of(model), options.progress)
        if refit:
            if fitted.cross is None or fitted.additive is None:
                raise OptionError(
                    "update(refit=True) needs moments that add up, which the exact solver and transforms per class do "
                    "not keep (nor does a file, but for one of save(moments=True)). Fit with "
                    'RichBLL(…, solver="cross"), or fit on all of the data.'
                )
            if fitted.moments.num_rows != fitted.moments.num_data or fitted.num_added:
                raise OptionError(
                    "update(refit=True) needs a fit on all of the data, without subsampling and without updates that "
                    "did not refit: their rows were not kept. Call fit on all of the data."
                )
            held = _Kept(stream)
            here = fitted.to(network.device)
            fitted = _refitted(network, held, here, options, fitted.cross.to(here.root.device), fitted.additive)
            return _conditioned(network, held, fitted, rows_too=False)
        return _conditioned(network, stream, fitted, rows_too=True)


def _conditioned(network: Network, stream: Any, fitted: Fitted, rows_too: bool) -> Fitted:
    root, pull, num_added = fitted.root, fitted.pull, fitted.num_added
    g = len(fitted.posterior.W)
    with_targets = without = 0
    for batch in stream.batches("update"):
        phi_r, f = network.features(batch)
        reading = network.reader.read(batch, f)
        phi = fitted.beside(phi_r)
        weights = phi.new_ones(batch.size, 1) if reading.weights is None else fitted.beside(reading.weights)
        if rows_too:
            root = added_rows(root, phi, weights)
        if reading.residuals is not None:
            e = weights * fitted.beside(reading.residuals)  # (n, c)
            b = (phi.mT @ e).mT  # (c, r)
            pull = b if pull is None else pull + b
            with_targets += batch.size
        else:
            without += batch.size
        num_added += batch.size if rows_too else 0
    if with_targets and without:
        raise DataError(f"{with_targets} of the new examples have targets and {without} have none: give all or none.")
    if pull is not None:
        pull = pull.expand(g, -1)
    posterior = spectral_posterior(fitted.transform(), root)
    return replace(fitted, root=root, posterior=posterior, pull=pull, num_added=num_added)


def added_rows(root: Tensor, phi: Tensor, weights: Tensor) -> Tensor:
    """R' with R'ᵀR' = RᵀR + Σ weight φφᵀ, by a QR of the stacked rows: nothing is squared."""  # (g, r, r)
    g = max(len(root), weights.shape[1])
    rows = weights.mT.sqrt().unsqueeze(-1) * phi  # (g or 1, n, r)
    stacked = torch.cat([root.expand(g, -1, -1), rows.expand(g, -1, -1)], dim=1)
    return torch.linalg.qr(stacked, mode="r").R


def _refitted(
    network: Network, stream: Any, fitted: Fitted, options: Options, cross: Tensor, additive: Additive
) -> Fitted:
    """The projection from old and new cross moments together, and the data term from both."""
    solution = _solver_of(additive)(network, stream, options.memory)
    if solution.cross is None or solution.additive != additive:
        raise OptionError(
            f"The moments of the fit ({additive}) and of the new data ({solution.additive}) do not add up."
        )
    moments = fitted.moments + solution.moments
    trace_m = fitted.projections[0].trace_m + solution.projection.trace_m
    return summed(fitted, moments, cross + solution.cross, trace_m, additive, options)


def _solver_of(additive: Additive) -> Solver:
    """What gives moments of the same kind."""
    if additive.solver == "cross":
        return cross_solver.solve
    drawn = additive.sketch
    return Sketched(drawn["kind"], drawn["size"], drawn["seed"], drawn["rules"])


def summed(
    fitted: Fitted, moments: Moments, cross: Tensor, trace_m: Tensor, additive: Additive, options: Options
) -> Fitted:
    """The same fit from sums over more data."""
    dtype = getattr(torch, additive.feature_dtype.removeprefix("torch."))
    projections = (cross_solver.projection_from(cross, moments, trace_m, dtype),)
    ridge = settled_ridge(options, projections, moments, enriched=bool(fitted.parameter_names))
    root = data_root(projections, moments)
    posterior = posterior_for(projections, root, ridge, fitted.last_layer.num_own, moments.row_weight)
    fitted = replace(fitted, moments=moments, projections=projections, ridge=ridge, root=root, posterior=posterior)
    return replace(fitted, cross=cross, num_added=0)


class _Kept:
    """A stream that is read twice, kept in memory: new data is little."""

    num_data: int | None = None
    num_rows: int | None = None
    can_be_reread = True
    keeps_state = False

    def __init__(self, stream: Stream) -> None:
        self._batches = [batch.copied() for batch in stream.batches("new data")]
        self.ranks = stream.ranks

    def peek(self) -> Batch:
        """The first batch."""
        return self._batches[0]

    def batches(self, task: str, state: dict[str, Tensor] | None = None) -> Any:
        """The batches."""
        yield from self._batches
