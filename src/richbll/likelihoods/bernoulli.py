"""Yes or no, one or several times over: sigmoids of logits whose uncertainty is Gaussian and independent."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from richbll.errors import DataError
from richbll.likelihoods.draws import Part, drawn
from richbll.network.batches import Batch
from richbll.network.reading import Reading
from richbll.precision import in_float64


@dataclass(frozen=True)
class Bernoulli:
    """Reads data for binary and multi-label classification: every logit's gradient, labels are not needed."""

    curvature: str  # "gaussian" or "ggn": p(1 − p)
    one_column: bool = False

    def read(self, batch: Batch, f: Tensor) -> Reading:
        """Weight 1, or p(1 − p) of each logit."""
        y = batch.targets_like(f)
        if y is not None and bool(((y != 0) & (y != 1)).any()):
            raise DataError(f"Labels of {batch.where} are not all 0 or 1.")
        if self.curvature == "gaussian":
            return Reading()
        p = in_float64(f).sigmoid()
        return Reading(weights=p * (1 - p))


def log_samples(f: Tensor, variance: Tensor, num_samples: int, seed: int, answer: int = 1) -> Iterator[Part]:
    """log p(answer) for draws of the logits N(f, variance), in parts; the draws are the same for 1 and for 0."""
    for rows, z in drawn(f, variance.sqrt(), num_samples, seed):
        yield rows, logsigmoid(z if answer else -z)  # (k, rows, c)


def log_probit(f: Tensor, variance: Tensor) -> Tensor:
    """log σ(f / √(1 + π/8 v)), MacKay's approximation."""  # (n, c)
    return logsigmoid(f / torch.sqrt(1 + math.pi / 8 * variance))


def log_bridge(f: Tensor, variance: Tensor) -> Tensor:
    """The mean of the Beta distribution that the Laplace bridge matches to two classes with logits ±f/2.

    It is σ(f) itself, whatever the variance v/4 of each; so, as for several classes, logits are first scaled by the
    variance where that exceeds 1.
    """  # (n, c)
    return logsigmoid(f / torch.clamp(variance / 4, min=1.0).sqrt())


def binary_entropy(p: Tensor) -> Tensor:
    """−p log p − (1 − p) log(1 − p)."""
    return torch.special.entr(p) + torch.special.entr(1 - p)
