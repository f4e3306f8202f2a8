"""Methods that put a posterior over the last layer of the shared network: BLL, Rich-BLL and last-layer Laplace."""

import copy
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
_PAIRS = 9  # of timings


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
            seconds, grown = fitting(uq, task)
            costs = {"fit_megabytes": grown / 1e6, "fit_yards": seconds / (uq.subsample_size * yard(task))}
            task.kept[address] = uq, seconds, costs | {"predict_ratio": predict_ratio(uq, task)}
        uq, seconds, costs = task.kept[address]
        uq = copy.copy(uq)  # it holds its posterior as a value, so that tuning the copy leaves the first as it is
        if self.tuned:
            uq.tune(task.loader("validation"))
        return Fitted(predicting(uq, task), seconds, {**costs, "prior_variance": float(uq.prior_variance.mean())})

    def posterior(self, task: Task) -> RichBLL:
        """Not fitted yet."""
        chosen = {"subsample": task.per_class, "seed": task.seed, "progress": False} | dict(self.options)
        return RichBLL(task.backbone.model, "classification", **chosen)


def fitting(uq: RichBLL, task: Task) -> tuple[float, float]:
    """Fit, and say what it took: processor seconds, and bytes at the highest."""
    loader = task.loader("train")
    began = time.process_time()
    _, grown = peak_growth(lambda: uq.fit(loader))
    return time.process_time() - began, grown


def predicting(uq: RichBLL, task: Task) -> Callable[[str], Prediction]:
    """From features that are there already: what `uq.predict` gives, without running the network again."""
    head = uq.as_module().head
    subset, num_classes = task.images("subset"), len(task.data.classes)
    weight = len(task.data.train) / max(1, len(subset))
    units = scores.unit_variance(task.seen("subset"), subset.labels, num_classes, weight)

    def asked(seen: Seen, link: str) -> ClassPredictive:
        with torch.no_grad():
            logits, variance = head.in_parts(seen.features, seen.logits)
        return ClassPredictive(
            logits.double(), variance.double(), link=link, num_samples=task.num_samples, seed=task.seed
        )

    def single(seen: Seen) -> dict[str, Tensor]:
        return scores.of_posterior(asked(seen, "mc"), seen) | scores.of_features(units, seen)

    combined = scores.combination(single(task.seen("validation")))

    def predict(name: str) -> Prediction:
        seen = task.seen(name)
        found = single(seen)
        links = {link: asked(seen, link).probs.log() for link in ("probit", "bridge")} if name == "test" else {}
        return Prediction(asked(seen, "mc").probs.log(), found | combined.of(found), links)

    return predict


def yard(task: Task) -> float:
    """Processor seconds of a forward and backward pass with weight gradients, for each image."""
    model, images = task.backbone.model, task.images("train").rows(slice(_YARD_IMAGES))
    parameters = list(model.parameters())
    x = [batch for batch, _ in type(task.loader("train"))(images, task.data.scaling)]

    def work() -> None:
        for batch in x:
            torch.autograd.grad(model(batch).sum(), parameters)

    work()
    return cpu_seconds(work) / len(images)


def predict_ratio(uq: RichBLL, task: Task) -> float:
    """Seconds of `predict` for a batch of 256 over those of the plain forward pass: the median of pairs."""
    model, (x, _) = task.backbone.model, next(iter(task.loader("test")))

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    def predict() -> object:
        return uq.predict(x).logit_variance

    forward(), predict()
    ratios = sorted(_seconds(predict) / _seconds(forward) for _ in range(_PAIRS))
    return ratios[_PAIRS // 2]


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return max(time.process_time() - began, 1e-9)
