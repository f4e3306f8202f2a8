"""How good are probabilities, and how well does a score tell two groups apart?"""

import torch
from torch import Tensor


def calibration_error(confidence: Tensor, correct: Tensor, num_bins: int = 15) -> Tensor:
    """ECE: the mean of |share correct − mean confidence| over bins of equal width, each by its share of the examples.

    Examples:
        >>> calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([True, False]))
        tensor(0.4000)
    """
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)  # (n,)
    excess = torch.zeros(num_bins, dtype=confidence.dtype).index_add_(
        0, bins, correct.to(confidence.dtype) - confidence
    )
    return excess.abs().sum() / len(confidence)  # ()


def auroc(low: Tensor, high: Tensor) -> float:
    """The share of pairs in which a score of `high` is above one of `low`; ties count half.

    Examples:
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    scores = low.double().sort().values
    below, not_above = torch.searchsorted(scores, high.double()), torch.searchsorted(scores, high.double(), right=True)
    return float((below + not_above).double().mean() / (2 * len(low)))
