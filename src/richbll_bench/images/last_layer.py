"""Methods that put a posterior over the last layer of the shared network: BLL, Rich-BLL and last-layer Laplace."""

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from richbll import ClassPredictive, RichBLL
from richbll_bench.costs import cpu_seconds, peak_growth
from richbll_bench.images import scores
from richbll_bench.images.task import Fitted, Prediction, Seen, Task

_YARD_IMAGES = 512
_YARDS = 2  # before a fit, and as many after it
_PAIRS = 11  # of timings


@dataclass(frozen=True)
class LastLayer:
    """RichBLL with some options, fitted on so many training images of each class."""

    name: str
    title: str
    source: str
    options: Mapping[str, Any] = field(default_factory=dict)
    score: str = "variance"
    tuned: bool = False  # the prior scale by the validation labels' log-probability
    own_networks: int = 0

    def fit(self, task: Task) -> Fitted:
        """One or two passes over the chosen images; methods with the same options share them, and their cost."""
        address = f"posterior {sorted(self.options.items())}"
        if address not in task.kept:
            uq = self.posterior(task)
            seconds, costs = fitting(uq, task)
            task.kept[address] = uq, seconds, costs | predict_ratios(uq, task)
        uq, seconds, costs = task.kept[address]
        uq = copy.copy(uq)  # it holds its posterior as a value, so that tuning the copy leaves the first as it is
        if self.tuned:
            uq.tune(task.loader("validation"))
        return Fitted(predicting(uq, task), seconds, {**costs, "prior_variance": float(uq.prior_variance.mean())})

    def posterior(self, task: Task) -> RichBLL:
        """Not fitted yet."""
        chosen = {"subsample": task.per_class, "seed": task.seed, "progress": False} | dict(self.options)
        return RichBLL(task.backbone.model, "classification", **chosen)


def fitting(uq: RichBLL, task: Task) -> tuple[float, dict[str, float]]:
    """Fit, and say what it took: processor seconds; these in yards, timed before and after; megabytes at most."""
    loader, before = task.loader("train"), yard(task)
    began = time.process_time()
    _, grown = peak_growth(lambda: uq.fit(loader))
    seconds = time.process_time() - began
    a_yard = (before + yard(task)) / 2
    costs = {"fit_megabytes": grown / 1e6, "fit_yards": seconds / (uq.subsample_size * a_yard)}
    return seconds, costs | {"yard_ms": 1e3 * a_yard}


def logits_of(uq: RichBLL) -> Callable[[Seen], tuple[Tensor, Tensor]]:
    """Mean and variance of the logits, from features that are there already."""  # (n, C), (n, C)
    head = uq.as_module().head

    def found(seen: Seen) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logits, variance = head.in_parts(seen.features, seen.logits)
        return logits.double(), variance.double()

    return found


def chosen_factor(uq: RichBLL, task: Task) -> float:
    """Of all variances: the one with the largest log-probability of the validation labels, of five for each decade."""
    logits, variance = logits_of(uq)(task.seen("validation"))
    labels = task.images("validation").labels

    def score(factor: float) -> float:
        found = ClassPredictive(logits, factor * variance, num_samples=task.num_samples, seed=task.seed)
        return float(found.log_prob(labels).mean())

    centre = -float(variance.mean().log10())
    return max((10 ** (centre + step / 5) for step in range(-25, 16)), key=score)


def predicting(uq: RichBLL, task: Task, factor: float = 1.0) -> Callable[[str], Prediction]:
    """What `uq.predict` gives, all variances times a factor, without running the network again."""
    found_logits = logits_of(uq)
    subset, num_classes = task.images("subset"), len(task.data.classes)
    weight = len(task.data.train) / max(1, len(subset))
    units = scores.unit_variance(task.seen("subset"), subset.labels, num_classes, weight)

    def asked(seen: Seen, link: str) -> ClassPredictive:
        logits, variance = found_logits(seen)
        return ClassPredictive(logits, factor * variance, link=link, num_samples=task.num_samples, seed=task.seed)

    def single(drawn: ClassPredictive, seen: Seen) -> dict[str, Tensor]:
        return scores.of_posterior(drawn, seen) | scores.of_features(units, seen)

    combined = scores.combination(single(asked(task.seen("validation"), "mc"), task.seen("validation")))

    def predict(name: str) -> Prediction:
        seen = task.seen(name)
        drawn = asked(seen, "mc")
        found = single(drawn, seen)
        links = {link: _log_probs(asked(seen, link)) for link in ("probit", "bridge")} if name == "test" else {}
        return Prediction(_log_probs(drawn), found | combined.of(found), links)

    return predict


def _log_probs(found: ClassPredictive) -> Tensor:
    return found.probs.clamp_min(torch.finfo(torch.float64).tiny).log()


def yard(task: Task) -> float:
    """Processor seconds of a forward and backward pass with weight gradients, for each image."""
    model, images = task.backbone.model, task.images("train").rows(slice(_YARD_IMAGES))
    parameters = list(model.parameters())
    x = [batch for batch, _ in type(task.loader("train"))(images, task.data.scaling)]

    def work() -> None:
        for batch in x:
            torch.autograd.grad(model(batch).sum(), parameters)

    work()
    return statistics.median(cpu_seconds(work) for _ in range(_YARDS)) / len(images)


def predict_ratios(uq: RichBLL, task: Task) -> dict[str, float]:
    """Seconds of `predict` for a batch of 256 over those of the plain forward pass: medians of pairs.

    Mean and variance of the logits, as they are; and with the default score, which draws 50 logits for each image.
    """
    model, (x, _) = task.backbone.model, next(iter(task.loader("test")))

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    def predict() -> object:
        return uq.predict(x).logit_variance

    def score() -> object:
        return uq.predict(x).ood_score

    forward(), predict(), score()
    taken = [[_seconds(work) for work in (forward, predict, score)] for _ in range(_PAIRS)]
    return {
        "predict_ratio": statistics.median(predicting / plain for plain, predicting, _ in taken),
        "predict_ratio_score": statistics.median(scoring / plain for plain, _, scoring in taken),
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return max(time.process_time() - began, 1e-9)
