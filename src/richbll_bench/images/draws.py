"""Predictions by an average over networks that are drawn, or trained, several times."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from richbll_bench.images import scores
from richbll_bench.images.task import Prediction


def averaged(logits: Iterable[Tensor]) -> Prediction:
    """Mean of the probabilities of draws (n, C), one after the other; scores: entropy, 1 − max p, mutual information.

    Examples:
        >>> made = averaged([torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]])])
        >>> made.log_probs.exp()
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
        >>> round(float(made.scores["mutual_information"]), 3)
        0.692
    """
    total: Tensor | None = None
    own_entropy, count = torch.zeros(1, dtype=torch.float64), 0
    for drawn in logits:
        p = drawn.double().softmax(dim=1)
        total = p if total is None else total + p
        own_entropy = own_entropy + torch.special.entr(p).sum(dim=1)
        count += 1
    assert total is not None
    log_probs = (total / count).log()
    found: Mapping[str, Tensor] = scores.of_probabilities(log_probs)
    information = (found["entropy"] - own_entropy / count).clamp_min(0)
    return Prediction(log_probs, {**found, "mutual_information": information})
