"""Predictions from several outputs for one input: of members, of dropped-out networks, of drawn weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from richbll import RegressionPredictive
from richbll_bench.metrics import gaussian_nll
from richbll_bench.regression.split import Pair
from richbll_bench.regression.task import Predict

Draws = Callable[[Tensor], Tensor]  # of inputs (n, d), the outputs (K, n, 1)


def predict_by(draws: Draws, noise_variance: float) -> Predict:
    """The mean of the outputs; their variance is epistemic, and the noise comes on top."""

    def predict(x: Tensor) -> RegressionPredictive:
        with torch.no_grad():
            outputs = draws(x)  # (K, n, 1)
        return RegressionPredictive(outputs.mean(dim=0), outputs.var(dim=0, correction=0), torch.tensor(noise_variance))

    return predict


def error_of_mean(draws: Draws, data: Pair) -> float:
    """Mean squared error of the outputs' mean."""
    x, y = data
    with torch.no_grad():
        return float((draws(x).mean(dim=0) - y).square().mean())


def nll_of(predict: Predict, data: Pair) -> float:
    """Negative log-likelihood of a prediction."""
    x, y = data
    predictive = predict(x)
    return float(gaussian_nll(predictive.mean, predictive.variance, y))
