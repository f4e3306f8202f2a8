"""Split conformal calibration: intervals and sets that hold a new target with probability `level` or more.

For n calibration points that are exchangeable with the new one, whatever the model, a score is at most the
⌈(n + 1) level⌉-th smallest calibration score with probability at least level, and, without ties, at most
level + 1/(n + 1). The probability is over calibration data and new point together, and for each output by itself.
The level is chosen at prediction time: what is kept is the sorted scores.

Scores of a class given the probabilities p: "lac" 1 − p_k, which gives the smallest sets on average; "aps" the
probability of all classes at least as likely, Σ_j p_j [p_j ≥ p_k], which adapts the size of a set to its input. Of the
two forms of APS this is the one without a random number: calibrated, it has the same coverage as the random one (the
bounds above hold for any score), its sets are somewhat larger, and equal inputs get equal sets, in any batch, that grow
with the level.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.checks import finite_rows, one_of
from richbll.errors import DataError, OptionError, ShapeError
from richbll.likelihoods.draws import by_rows
from richbll.precision import in_float64


@dataclass(frozen=True)
class Calibration:
    """Calibration scores, ascending, float64, and the kind of score: "interval", "lac" or "aps".

    Examples:
        >>> Calibration("interval", torch.tensor([[0.1], [0.5], [2.0]])).quantile(0.5)
        tensor([0.5000])
    """

    kind: str
    sorted_scores: Tensor  # (n, c) for intervals, (n,) for sets
    asked: str = ""  # how the probabilities were asked for, as later ones must be

    def quantile(self, level: float) -> Tensor:
        """The score that a new one stays below with probability `level`: (c,) for intervals, () for sets."""
        return conformal_quantile(self.sorted_scores, level)


def conformal_quantile(sorted_scores: Tensor, level: float) -> Tensor:
    """The ⌈(n + 1) level⌉-th smallest of n scores (n, …), or inf when there are too few.

    Examples:
        >>> scores = torch.arange(1.0, 10.0)  # n = 9
        >>> conformal_quantile(scores, 0.8), conformal_quantile(scores, 0.95)
        (tensor(8.), tensor(inf))
    """
    if not 0 < level < 1:
        raise OptionError(f"level={level!r}: must lie strictly between 0 and 1, e.g. 0.9.")
    n = len(sorted_scores)
    rank = math.ceil((n + 1) * level * (1 - 1e-12))  # 100 · 0.07 is 7, not 8
    return sorted_scores[rank - 1] if rank <= n else torch.full_like(sorted_scores[0], torch.inf)


def calibrate_intervals(y: Tensor, mean: Tensor, std: Tensor) -> Calibration:
    """Scores |y − μ| / std of calibration points that were used neither in training nor in tuning, all (n, c).

    Examples:
        >>> y = torch.randn(100, 1)
        >>> calibration = calibrate_intervals(y, torch.zeros(100, 1), torch.ones(100, 1))
        >>> calibration.sorted_scores.shape
        torch.Size([100, 1])
    """
    if y.ndim != 2 or y.shape != mean.shape or y.shape != std.shape:
        raise ShapeError(
            f"Targets, means and standard deviations must have one shape (n, c): they have {tuple(y.shape)}, "
            f"{tuple(mean.shape)} and {tuple(std.shape)}."
        )
    _check_some(len(y))
    if bool((std <= 0).any()):
        raise DataError(f"Standard deviations must be positive, but the smallest is {std.min().item():.3g}.")
    scores = (in_float64(y.detach()) - in_float64(mean.detach())).abs() / in_float64(std.detach())
    finite_rows("scores |y − μ| / std", "the calibration data", scores)
    return Calibration("interval", scores.sort(dim=0).values)


def interval_half_width(calibration: Calibration, std: Tensor, level: float) -> Tensor:
    """q(level) · std (n, c): the interval μ ± this holds y with probability `level` or more. Infinite if n is small.

    Examples:
        >>> calibration = Calibration("interval", torch.tensor([[0.5], [1.0], [2.0]]))
        >>> interval_half_width(calibration, torch.tensor([[1.0], [3.0]]), 0.75).flatten()
        tensor([2., 6.])
    """
    one_of("calibration.kind", calibration.kind, ["interval"])
    c = calibration.sorted_scores.shape[-1]
    if std.ndim != 2 or std.shape[1] != c:
        raise ShapeError(f"std has shape {tuple(std.shape)}, but the calibration is for {c} output(s).")
    return calibration.quantile(level).to(std) * std


def calibrate_sets(probs: Tensor, labels: Tensor, score: str = "lac") -> Calibration:
    """Scores of the true labels (n,) under the probabilities (n, C), by "lac" or "aps".

    Examples:
        >>> calibrate_sets(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 0])).sorted_scores
        tensor([0.3000, 0.6000], dtype=torch.float64)
    """
    _check_some(len(labels))
    return Calibration(score, label_scores(probs, labels, score).sort().values)


def label_scores(probs: Tensor, labels: Tensor, score: str) -> Tensor:
    """Scores of the true labels (n,), not sorted, so that they can be taken batch by batch.

    Examples:
        >>> label_scores(torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([1, 1]), "lac")
        tensor([0.7000, 0.4000], dtype=torch.float64)
    """
    one_of("score", score, ["lac", "aps"])
    scores = class_scores(score, probs)
    if labels.shape != probs.shape[:1]:
        raise ShapeError(f"Labels have shape {tuple(labels.shape)}, probabilities {tuple(probs.shape)}.")
    if labels.is_floating_point() or labels.min().item() < 0 or labels.max().item() >= probs.shape[1]:
        raise DataError(
            f"Labels must be integers from 0 to {probs.shape[1] - 1}: they are {labels.dtype} from "
            f"{labels.min().item()} to {labels.max().item()}."
        )
    return scores.gather(1, labels.long().unsqueeze(-1).to(scores.device)).squeeze(-1)


def prediction_set(calibration: Calibration, probs: Tensor, level: float) -> Tensor:
    """Mask (n, C) of the classes whose score is at most q(level); the likeliest class is always among them.

    Examples:
        >>> calibration = Calibration("lac", torch.tensor([0.1, 0.2, 0.3, 0.65]))
        >>> prediction_set(calibration, torch.tensor([[0.6, 0.4], [0.8, 0.2]]), 0.8)
        tensor([[ True,  True],
                [ True, False]])
    """
    kind = one_of("calibration.kind", calibration.kind, ["lac", "aps"])
    threshold = calibration.quantile(level)

    def expected(probs: Tensor) -> Tensor:
        scores = class_scores(kind, probs)
        likeliest = probs >= probs.amax(dim=-1, keepdim=True)
        return (scores <= threshold.to(scores)).to(probs.device) | likeliest

    return by_rows(expected, probs) if probs.ndim == 2 and probs.shape[1] else expected(probs)


def class_scores(score: str, probs: Tensor) -> Tensor:
    """The score of every class (n, C), float64: "lac" 1 − p_k, "aps" Σ_j p_j [p_j ≥ p_k].

    Examples:
        >>> class_scores("aps", torch.tensor([[0.5, 0.125, 0.375]]))
        tensor([[0.5000, 1.0000, 0.8750]], dtype=torch.float64)
    """
    if probs.ndim != 2 or probs.shape[1] == 0:
        raise ShapeError(f"Probabilities have shape {tuple(probs.shape)}: they must be (points, classes).")
    finite_rows("probabilities", "the data", probs)
    p = in_float64(probs.detach())
    if len(p) and (p.min().item() < 0 or (p.sum(dim=-1) - 1).abs().max().item() > 1e-2):
        raise DataError("Probabilities must not be negative and must sum to 1 in every row: give probs, not logits.")
    if score == "lac":
        return 1 - p
    ascending = p.sort(dim=-1).values
    mass = ascending.cumsum(dim=-1) - ascending  # of the classes before each
    less_likely = mass.gather(-1, torch.searchsorted(ascending, p))  # Σ_j p_j [p_j < p_k]
    return ascending.sum(dim=-1, keepdim=True) - less_likely


def _check_some(n: int) -> None:
    if n == 0:
        raise DataError("There are no calibration points: level 0.9 needs at least 9, better some hundreds.")
