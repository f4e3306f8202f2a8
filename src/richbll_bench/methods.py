"""Ways to get a prediction with uncertainty from one trained network, behind one signature."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from richbll import RegressionPredictive, RichBLL
from richbll_bench.nets import Pair
from richbll_bench.ntk_gp import fit_ntk_gp

Predict = Callable[[Tensor], RegressionPredictive]
Fit = Callable[[nn.Module, Pair, float], Predict]  # network, training data, noise variance


def network_alone(model: nn.Module, data: Pair, noise_variance: float) -> Predict:
    """MAP: the network's mean, and the noise as all of the uncertainty."""

    def predict(x: Tensor) -> RegressionPredictive:
        with torch.no_grad():
            mean = model(x)
        return RegressionPredictive(mean, torch.zeros_like(mean), torch.tensor([noise_variance]))

    return predict


def bayesian_last_layer(prior_variance: float, **options: Any) -> Fit:
    """BLL or Rich-BLL, by the options of `RichBLL`."""

    def fit(model: nn.Module, data: Pair, noise_variance: float) -> Predict:
        uq = RichBLL(model, prior_variance=prior_variance, noise_variance=noise_variance, progress=False, **options)
        return uq.fit(data).predict

    return fit


def ntk_gp(prior_variance: float) -> Fit:
    """The exact Gaussian process of all weights."""

    def fit(model: nn.Module, data: Pair, noise_variance: float) -> Predict:
        return fit_ntk_gp(model, data[0], noise_variance=noise_variance, prior_variance=prior_variance).predict

    return fit
