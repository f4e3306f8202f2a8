"""Ways to get a prediction with uncertainty from one trained network, behind one signature."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from richbll import RegressionPredictive, RichBLL
from richbll_bench.metrics import gaussian_nll
from richbll_bench.ntk_gp import fit_ntk_gp
from richbll_bench.regression.backbones import Trained
from richbll_bench.regression.split import Pair
from richbll_bench.regression.task import Fitted, Predict, Task

Fit = Callable[[nn.Module, Pair, float], Predict]  # network, training data, noise variance

# σ² relative to the validation error, where it is chosen by validation NLL.
NOISE_GRID = (0.4, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)


@dataclass(frozen=True)
class PostHoc:
    """A method that leaves the backbone as it is.

    The noise is the validation error, or what the validation rows like best of a grid around it, with the network and
    the posterior of the training rows alone.
    """

    name: str
    title: str
    source: str
    fit_one: Fit
    grid: bool = False

    def fit(self, task: Task) -> list[Fitted]:
        """One backbone after the other."""
        return [self._fitted(trained) for trained in task.backbones]

    def _fitted(self, trained: Trained) -> Fitted:
        noise = self._best_noise(trained) if self.grid else trained.noise_variance
        began = time.perf_counter()
        predict = self.fit_one(trained.model, trained.split.everything_but_test, noise)
        chosen = {"noise_variance": noise, "epochs": float(trained.epochs)}
        return Fitted(predict, time.perf_counter() - began, chosen)

    def _best_noise(self, trained: Trained) -> float:
        candidates = [factor * trained.noise_variance for factor in NOISE_GRID]
        return min(candidates, key=lambda noise: self._validation_nll(trained, noise))

    def _validation_nll(self, trained: Trained, noise: float) -> float:
        x, y = trained.split.validation
        predictive = self.fit_one(trained.selected, trained.split.train, noise)(x)
        return float(gaussian_nll(predictive.mean, predictive.variance, y))


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


def tuned_last_layer(prior_variances: Sequence[float]) -> Fit:
    """A plain Bayesian last layer with the prior variance of the largest evidence."""

    def fit(model: nn.Module, data: Pair, noise_variance: float) -> Predict:
        uq = RichBLL(model, noise_variance=noise_variance, enrich=False, progress=False).fit(data)

        def evidence(prior_variance: float) -> float:
            uq.prior_variance = prior_variance
            return float(uq.log_marginal_likelihood())

        uq.prior_variance = max(prior_variances, key=evidence)
        return uq.predict

    return fit


def ntk_gp(prior_variance: float) -> Fit:
    """The exact Gaussian process of all weights."""

    def fit(model: nn.Module, data: Pair, noise_variance: float) -> Predict:
        return fit_ntk_gp(model, data[0], noise_variance=noise_variance, prior_variance=prior_variance).predict

    return fit
