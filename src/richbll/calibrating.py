"""Held-out data in, scales and calibration out: what connects `tuning` to a fitted posterior."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from richbll.errors import DataError, NonFiniteError, OptionError
from richbll.fitted import Fitted
from richbll.fitting import device_of
from richbll.likelihoods.categorical import class_of, label_log_probs
from richbll.likelihoods.conformal import Calibration, calibrate_intervals, label_scores
from richbll.network.batches import Stream
from richbll.network.network import Network
from richbll.options import Options
from richbll.precision import in_float64
from richbll.predictive import ClassPredictive
from richbll.tuning.evidence import log_evidence, tune_by_evidence
from richbll.tuning.prior_scale import tune_both_by_nll, tune_prior_by_nll
from richbll.tuning.reading import Validation, read_validation
from richbll.tuning.validation import Scales, tune_by_mse, tune_by_nll


@torch.inference_mode(False)
def tuned(model: nn.Module, data: Any, fitted: Fitted, options: Options, method: str) -> Fitted:
    """The fitted value with noise and prior scale chosen by a method."""
    if method == "evidence":
        if data is not None:
            raise OptionError('tune(method="evidence") takes no data: it looks at the training data of the fit.')
        scales = tune_by_evidence(*_evidence_moments(model, fitted, options))
    else:
        if data is None:
            raise DataError(f'tune(method="{method}") needs held-out data; without any there is method="evidence".')
        if fitted.pull is not None:
            raise OptionError("After update() with targets the mean depends on the scales: tune before updating.")
        if options.noise_function is not None and method == "mse":
            raise OptionError('method="mse" chooses the noise, which is a function of x already: take "nll".')
        network = _network(model, fitted, options)
        validation = read_validation(network, data, fitted, options.memory, options.progress)
        scales = _scales(validation, fitted, options, method)
    device = fitted.posterior.W.device
    return replace(
        fitted, noise_variance=scales.noise_variance.to(device), prior_variance=scales.prior_variance.to(device)
    )


def _scales(validation: Validation, fitted: Fitted, options: Options, method: str) -> Scales:
    if options.is_regression:
        mean = validation.mean.to(torch.float64)
        errors_sq = (validation.targets.reshape(mean.shape) - mean).square()
        if method == "mse":
            return tune_by_mse(errors_sq, fitted.prior_variance)
        if validation.weights is not None:
            noise = validation.weights.reciprocal()  # (n, c) σ²(x)

            def gaussian_nll(variances: Tensor) -> Tensor:
                return torch.stack([(errors_sq / v + v.log()).mean() / 2 for v in variances + noise])

            return tune_prior_by_nll(
                validation.squares, fitted.posterior.eigenvalues, fitted.noise_variance, gaussian_nll
            )
        return tune_by_nll(validation.squares, fitted.posterior.eigenvalues, errors_sq)
    if method == "mse":
        raise OptionError('method="mse" is for regression; classes are tuned by "nll".')

    def nll(variances: Tensor) -> Tensor:
        """Of t trials of the variance (t, n, g), with the link that predict takes by default."""  # (t,)
        f, y = validation.mean, validation.targets
        if options.likelihood == "classification":
            s, seed = ClassPredictive.num_samples, ClassPredictive.seed
            return -label_log_probs(f, variances, y, s, seed).mean(dim=1)
        preds = [ClassPredictive(f.to(v), v.expand(f.shape), exclusive=False) for v in variances]
        return torch.stack([-pred.log_prob(y).mean() for pred in preds])

    squares, eigenvalues = validation.squares, fitted.posterior.eigenvalues
    if options.curvature == "gaussian":
        return tune_both_by_nll(squares, eigenvalues, Scales(fitted.noise_variance, fitted.prior_variance), nll)
    return tune_prior_by_nll(squares, eigenvalues, fitted.noise_variance, nll)


def evidence(model: nn.Module, fitted: Fitted, options: Options) -> Tensor:
    """log p(training data) per output at the scales in use."""  # (c,)
    moments = _evidence_moments(model, fitted, options)
    return log_evidence(*moments, fitted.noise_variance, fitted.prior_variance)


def _evidence_moments(model: nn.Module, fitted: Fitted, options: Options) -> tuple[Tensor, int, Tensor, Tensor]:
    """‖e‖², N, λ and wᵀ(BᵀB)⁻¹w."""
    if not options.is_regression or options.noise_function is not None:
        raise OptionError("The evidence is that of regression with constant noise.")
    if fitted.num_added or fitted.pull is not None:
        raise OptionError("The evidence is that of the fit; after update() call fit on all of the data first.")
    if fitted.moments.residual_sq is None:
        raise DataError("The evidence needs residuals, but the training data had no targets.")
    layer = model.get_submodule(fitted.last_layer.name)
    w = in_float64(layer.get_parameter("weight").detach())  # (c, d)
    if fitted.last_layer.has_bias:
        w = torch.cat([w, in_float64(layer.get_parameter("bias").detach()).unsqueeze(1)], dim=1)
    w = torch.nn.functional.pad(
        w, (0, fitted.last_layer.num_features - w.shape[1])
    )  # taps have no weights of their own
    L = fitted.transform()  # singular at times with a wider basis, but w lies in its range
    weight_sq = (torch.linalg.pinv(L) @ w.to(L.device).unsqueeze(-1)).square().sum(dim=(1, 2))  # ‖L⁻¹w‖²
    moments = fitted.moments
    residual_sq = moments.row_weight * fitted.moments.residual_sq
    return residual_sq, moments.num_data, fitted.posterior.eigenvalues, weight_sq


def calibrated(
    model: nn.Module, data: Any, fitted: Fitted, options: Options, predict: Callable[[Any], Any], score: str | None
) -> Calibration:
    """Sorted scores of held-out points under the predictions as they are."""
    if options.likelihood in ("binary", "multilabel"):
        raise OptionError('conformalize is for "regression" and "classification".')
    if options.is_regression and score is not None:
        raise OptionError(f"score={score!r}: intervals have one score only; score is for classes.")
    network, asked, kind = _network(model, fitted, options), "", score or "lac"
    means, spreads, targets, scores = [], [], [], []
    for batch in Stream(data, device_of(model), options.progress).batches("calibration"):
        if batch.targets is None:
            raise DataError(f"{batch.where} has no targets: calibration needs them.")
        try:
            pred = predict(batch.kwargs or batch.args)
        except NonFiniteError:
            network.features(batch)  # names the batch
            raise
        if options.is_regression:
            network.reader.read(batch, pred.mean)  # checks the targets
            means.append(pred.mean)
            spreads.append(pred.std)
            targets.append(batch.targets.reshape(pred.mean.shape))
        else:
            asked = pred.asked
            scores.append(label_scores(pred.probs, class_of(batch, pred.logits), kind))
    if options.is_regression:
        return calibrate_intervals(torch.cat(targets), torch.cat(means), torch.cat(spreads))
    return Calibration(kind, torch.cat(scores).sort().values, asked)


def _network(model: nn.Module, fitted: Fitted, options: Options) -> Network:
    layer = fitted.last_layer
    return Network(model, layer, {}, options.reader(layer.num_outputs, layer.num_features))
