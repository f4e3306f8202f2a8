"""Classes: softmax of logits whose uncertainty is Gaussian, independent over classes.

The paper's construction: an example belongs to the class of its label (or, without labels, to the predicted one), gives
the gradient of that class's logit to one transform, and its features to that class's posterior.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.checks import finite_rows
from richbll.errors import DataError
from richbll.likelihoods.draws import Part, drawn, log_mean_exp, normal_numbers
from richbll.network.batches import Batch
from richbll.network.reading import Reading
from richbll.precision import in_float64

_SHORT = 16  # classes, as many as a processor takes at once


@dataclass(frozen=True)
class Categorical:
    """Reads data for classification."""

    curvature: str  # "gaussian" (the paper) or "ggn" (softmax-weighted)
    per_class: bool  # one posterior for each class, or one for all
    one_column: bool = True

    def read(self, batch: Batch, f: Tensor) -> Reading:
        """The gradient of the example's class, and its weight in the posterior of each class (or of all)."""
        classes = class_of(batch, f).to(f.device)
        return Reading(columns=classes, weights=self._weights(batch, f, classes))

    def _weights(self, batch: Batch, f: Tensor, classes: Tensor) -> Tensor | None:
        if self.curvature == "ggn":
            p = in_float64(f).softmax(dim=1)
            curvature = p * (1 - p)  # (n, C) the diagonal of the softmax's Hessian
            weights = curvature if self.per_class else curvature.mean(dim=1, keepdim=True)
        elif self.per_class:
            weights = in_float64(torch.nn.functional.one_hot(classes, f.shape[1]))
        elif batch.row_weights is None:
            return None
        else:
            weights = in_float64(f.new_ones(len(f), 1))
        return batch.weighted(weights)


def class_of(batch: Batch, f: Tensor) -> Tensor:
    """The label of every example, or the predicted class where there are no labels."""  # (n,)
    y = batch.targets
    if y is None:
        return f.argmax(dim=1)
    if y.shape == f.shape and f.shape[1] > 1:  # one-hot or soft labels
        finite_rows("labels", batch.where, y)
        y = y.argmax(dim=1) if y.dtype != torch.bool else y.long().argmax(dim=1)
    whole = y.reshape(-1).to(torch.int64)
    if len(whole) != len(f) or bool((whole != y.reshape(-1)).any()):
        raise DataError(
            f"Labels of {batch.where} have shape {tuple(y.shape)} and dtype {y.dtype}: give one class number for each "
            f"of the {len(f)} examples."
        )
    if bool(((whole < 0) | (whole >= f.shape[1])).any()):
        raise DataError(
            f"Labels of {batch.where} go from {int(whole.min())} to {int(whole.max())}, but the model has {f.shape[1]} "
            f"outputs: classes are numbered 0 to {f.shape[1] - 1}."
        )
    return whole


# ---------------------------------------------------------------------- from logits to probabilities


def log_samples(f: Tensor, variance: Tensor, num_samples: int, seed: int) -> Iterator[Part]:
    """log softmax of draws of the logits N(f, variance), in parts."""  # (k, rows, C)
    for rows, z in drawn(f, variance.sqrt(), num_samples, seed):
        yield rows, _log_softmax(z)


def _log_softmax(z: Tensor) -> Tensor:
    """Over the last dimension; torch is many times slower along a short one that is contiguous."""  # (k, rows, C)
    if z.shape[-1] >= _SHORT:
        return torch.log_softmax(z, dim=-1)
    return torch.log_softmax(z.mT.contiguous(), dim=-2).mT


def label_log_probs(f: Tensor, variances: Tensor, labels: Tensor, num_samples: int, seed: int) -> Tensor:
    """log p of labels (n,) for each of t trials of the variance (t, n, C or 1), with the same draws for all; float64.

    What `log_samples` would give, but no probability of another class is kept.
    """  # (t, n)
    spreads = variances.to(torch.float64).sqrt()

    def parts() -> Iterator[Part]:
        for rows, eps in normal_numbers(f.to(torch.float64), num_samples, seed):
            logits, of_label = f[rows].to(torch.float64), labels[rows].view(1, -1, 1)
            trials = []
            for spread in spreads[:, rows]:
                z = torch.addcmul(logits, spread, eps)  # (k, rows, C)
                own = z.gather(2, of_label.expand(len(z), -1, 1)).squeeze(2)
                trials.append(own - torch.logsumexp(z, dim=2))
            yield rows, torch.stack(trials, dim=2)  # (k, rows, t)

    return log_mean_exp(parts(), num_samples).mT


def log_probit(f: Tensor, variance: Tensor) -> Tensor:
    """log softmax(f / √(1 + π/8 v)), MacKay's approximation."""  # (n, C)
    return torch.log_softmax(f / torch.sqrt(1 + math.pi / 8 * variance), dim=-1)


def log_bridge(f: Tensor, variance: Tensor) -> Tensor:
    """The mean of the Dirichlet that the Laplace bridge matches to the Gaussian over logits.

    α_c = (1 − 2/C + e^{f_c} Σ_k e^{−f_k} / C²) / v_c, for logits projected onto Σ f = 0. Logits and variances are first
    scaled by the mean variance, as the bridge holds only for small ones. With many classes it does not become the
    softmax as the variance vanishes.
    """  # (n, C)
    C, tiny = f.shape[-1], torch.finfo(f.dtype).tiny
    total = variance.sum(dim=-1, keepdim=True).clamp_min(tiny)
    f = f - variance * f.sum(dim=-1, keepdim=True) / total
    v = (variance - variance.square() / total).clamp_min(tiny)
    scale = torch.maximum(v.mean(dim=-1, keepdim=True) / math.sqrt(C / 2), torch.ones_like(total))
    f, v = f / scale.sqrt(), v / scale
    log_ratio = f + torch.logsumexp(-f, dim=-1, keepdim=True) - 2 * math.log(C)  # so that large logits do not overflow
    log_alpha = torch.logaddexp(log_ratio, torch.full_like(f, math.log(max(1 - 2 / C, 1e-30)))) - v.log()
    return torch.log_softmax(log_alpha, dim=-1)


def entropy(p: Tensor) -> Tensor:
    """−Σ p log p over classes, with 0 log 0 = 0."""
    return torch.special.entr(p).sum(dim=-1)
