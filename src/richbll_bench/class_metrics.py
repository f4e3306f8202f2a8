"""How good are probabilities, and how well does a score tell two groups apart?"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def calibration_error(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Tensor:
    """ECE: the mean of |share correct − mean confidence| over bins of equal width, each by its share of the examples.

    Examples:
        >>> calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([True, False]))
        tensor(0.4000)
    """
    found = reliability(confidence, correct, num_bins)
    return (found.correct - found.confidence).abs().sum()  # ()


@dataclass(frozen=True)
class Reliability:
    """Of every bin: its share of all examples, and what it adds to the mean confidence and to the share correct."""

    share: Tensor  # (bins,)
    confidence: Tensor  # (bins,)
    correct: Tensor  # (bins,)


def reliability(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Reliability:
    """Bins of equal width, by confidence.

    Examples:
        >>> reliability(torch.tensor([0.9, 0.1]), torch.tensor([True, False]), num_bins=2).correct
        tensor([0.0000, 0.5000])
    """
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)  # (n,)

    def added(values: Tensor) -> Tensor:
        zeros = torch.zeros(num_bins, dtype=confidence.dtype)
        return zeros.index_add_(0, bins, values.to(confidence.dtype)) / len(confidence)

    return Reliability(added(torch.ones_like(confidence)), added(confidence), added(correct))


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean of Σ_c (p_c − 1{c = y})².

    Examples:
        >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
        tensor(0.5000)
    """
    truth = torch.nn.functional.one_hot(labels, probs.shape[1]).to(probs.dtype)
    return (probs - truth).square().sum(dim=1).mean()  # ()


def false_positives(inside: Tensor, outside: Tensor, recall: float = 0.95) -> float:
    """FPR95: the share of `outside` that passes where 95 % of `inside` pass, by a score that is higher for strangers.

    Examples:
        >>> false_positives(torch.arange(100.0), torch.tensor([50.0, 94.0, 95.0, 200.0]))
        0.5
    """
    rank = max(1, math.ceil(recall * len(inside)))
    limit = inside.double().kthvalue(rank).values
    return float((outside.double() <= limit).double().mean())


def auroc(low: Tensor, high: Tensor) -> float:
    """The share of pairs in which a score of `high` is above one of `low`; ties count half.

    Examples:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    scores = low.double().sort().values
    below, not_above = torch.searchsorted(scores, high.double()), torch.searchsorted(scores, high.double(), right=True)
    return float((below + not_above).double().mean() / (2 * len(low)))
