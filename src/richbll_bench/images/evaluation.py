"""The numbers of a record: how good probabilities are on test images, and how well scores tell other images."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from richbll_bench.class_metrics import auroc, brier, calibration_error, false_positives, reliability
from richbll_bench.images.task import Fitted, Prediction, Task

NUM_BINS = 15  # of confidence
NUM_PARTS = 20  # of the score's range, equally many validation images in each


def evaluated(fitted: Fitted, task: Task, score: str) -> dict[str, float]:
    """On the test images, and on other images beside them."""
    labels = task.images("test").labels
    test, validation = fitted.predict("test"), fitted.predict("validation")
    metrics = of_probabilities(test.log_probs, labels)
    for link, log_probs in test.links.items():
        metrics |= {f"{name}_{link}": value for name, value in of_probabilities(log_probs, labels).items()}
    chosen_by = of_probabilities(validation.log_probs, task.images("validation").labels)
    metrics |= {f"{name}_validation": value for name, value in chosen_by.items()}
    metrics |= in_bins(test.log_probs, labels)
    wrong = test.log_probs.argmax(dim=1) != labels
    metrics |= detection(test, "errors", test.scores, rows=wrong) if bool(wrong.any()) and not bool(wrong.all()) else {}
    outside = {name: fitted.predict(name) for name in task.outside}
    for name, found in outside.items():
        metrics |= detection(test, name, found.scores)
        metrics |= {f"{kind}_{name}": metrics[f"{kind}_{name}_{score}"] for kind in ("auroc", "fpr95")}
    parts = {"test": test.scores[score]} | {name: found.scores[score] for name, found in outside.items()}
    metrics |= in_parts(validation.scores[score], parts)
    return metrics | {"fit_seconds": fitted.seconds} | dict(fitted.costs)


def of_probabilities(log_probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL in nats, ECE and Brier score."""
    p = log_probs.exp()
    confidence, predicted = p.max(dim=1)
    correct = predicted == labels
    return {
        "accuracy": float(correct.double().mean()),
        "nll": -float(log_probs.gather(1, labels.unsqueeze(1)).mean()),
        "ece": float(calibration_error(confidence, correct, NUM_BINS)),
        "brier": float(brier(p, labels)),
    }


def detection(
    inside: Prediction, name: str, strange: Mapping[str, Tensor], rows: Tensor | None = None
) -> dict[str, float]:
    """AUROC and FPR95 of every score; with `rows`, the strange ones are those of the inside themselves."""
    found = {}
    for score, outside in strange.items():
        near = inside.scores[score]
        near, far = (near, outside) if rows is None else (near[~rows], near[rows])
        found[f"auroc_{name}_{score}"] = auroc(near, far)
        found[f"fpr95_{name}_{score}"] = false_positives(near, far)
    return found


def in_bins(log_probs: Tensor, labels: Tensor) -> dict[str, float]:
    """For a reliability diagram."""
    confidence, predicted = log_probs.exp().max(dim=1)
    found = reliability(confidence, predicted == labels, NUM_BINS)
    metrics: dict[str, float] = {}
    for number in range(NUM_BINS):
        if share := float(found.share[number]):
            metrics |= {
                f"bin_share_{number}": share,
                f"bin_confidence_{number}": float(found.confidence[number]) / share,
                f"bin_correct_{number}": float(found.correct[number]) / share,
            }
    return metrics


def in_parts(validation: Tensor, scores: Mapping[str, Tensor]) -> dict[str, float]:
    """For a histogram: the share of each set in every twentieth of the validation images' scores."""
    at = torch.arange(1, NUM_PARTS, dtype=torch.float64) / NUM_PARTS
    edges = torch.quantile(validation.double(), at)
    metrics: dict[str, float] = {}
    for name, score in scores.items():
        counts = torch.bucketize(score.double(), edges).bincount(minlength=NUM_PARTS)
        metrics |= {f"part_{name}_{n}": float(count) / len(score) for n, count in enumerate(counts)}
    return metrics


def score_names(metrics: Sequence[str], outside: str) -> list[str]:
    """The scores that a record has for a set of other images."""
    start = f"auroc_{outside}_"
    return [name.removeprefix(start) for name in metrics if name.startswith(start)]
