"""What a method is given and what it gives back: the rows of several seeds, and a prediction for each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from richbll import RegressionPredictive
from richbll_bench.metrics import coverage, gaussian_crps, gaussian_nll
from richbll_bench.regression.backbones import Setting, Trained, splits_of, trained_backbones
from richbll_bench.regression.split import Pair, Split

Predict = Callable[[Tensor], RegressionPredictive]


@dataclass(frozen=True)
class Task:
    """Regression on one data set, for several seeds at once."""

    setting: Setting
    seeds: tuple[int, ...]
    tiny: bool = False

    @cached_property
    def splits(self) -> list[Split]:
        """The rows of every seed."""
        return splits_of(self.setting, self.seeds)

    @cached_property
    def backbones(self) -> list[Trained]:
        """The trained network of every seed, the same for all methods that begin with one."""
        return trained_backbones(self.setting, self.seeds)


@dataclass(frozen=True)
class Fitted:
    """One seed's prediction, what the validation rows have chosen for it, and the seconds that fitting took."""

    predict: Predict
    seconds: float
    chosen: dict[str, float] = field(default_factory=dict)


class Method(Protocol):
    """One file in `methods/`."""

    @property
    def name(self) -> str:
        """In records."""

    @property
    def title(self) -> str:
        """In tables."""

    @property
    def source(self) -> str:
        """Whose method it is, and which settings were taken from where."""

    def fit(self, task: Task) -> Sequence[Fitted]:
        """On training and validation rows; what is to be chosen is chosen on the validation rows alone."""


def scores(fitted: Fitted, data: Pair) -> dict[str, float]:
    """On held-out rows, in the units of the targets."""
    x, y = data
    began = time.perf_counter()
    predictive = fitted.predict(x)
    seconds = time.perf_counter() - began
    mean, variance, y = predictive.mean.double(), predictive.variance.double(), y.double()
    return {
        "nll": float(gaussian_nll(mean, variance, y)),
        "rmse": float((mean - y).square().mean().sqrt()),
        "crps": float(gaussian_crps(mean, variance, y)),
        "coverage_90": float(coverage(mean, variance, y)),
        "epistemic_std": float(predictive.epistemic_variance.double().sqrt().mean()),
        "fit_seconds": fitted.seconds,
        "predict_seconds": seconds,
    } | fitted.chosen
