"""Classes: softmax of logits whose uncertainty is Gaussian, independent over classes.

The paper's construction: an example belongs to the class of its label (or, without labels, to the predicted one), gives
the gradient of that class's logit to one transform, and its features to that class's posterior.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.errors import DataError
from richbll.network.batches import Batch
from richbll.network.reading import Reading
from richbll.rng import child_generator


@dataclass(frozen=True)
class Categorical:
    """Reads data for classification."""

    curvature: str  # "gaussian" (the paper) or "ggn" (softmax-weighted)
    per_class: bool  # one posterior for each class, or one for all
    one_column: bool = True

    def read(self, batch: Batch, f: Tensor) -> Reading:
        """The gradient of the example's class, and its weight in the posterior of each class (or of all)."""
        classes = class_of(batch, f)
        return Reading(columns=classes, weights=self._weights(batch, f, classes))

    def _weights(self, batch: Batch, f: Tensor, classes: Tensor) -> Tensor | None:
        if self.curvature == "ggn":
            p = f.to(torch.float64).softmax(dim=1)
            curvature = p * (1 - p)  # (n, C) the diagonal of the softmax's Hessian
            weights = curvature if self.per_class else curvature.mean(dim=1, keepdim=True)
        elif self.per_class:
            weights = torch.nn.functional.one_hot(classes, f.shape[1]).to(torch.float64)
        elif batch.row_weights is None:
            return None
        else:
            weights = torch.ones(len(f), 1, dtype=torch.float64, device=f.device)
        return batch.weighted(weights)


def class_of(batch: Batch, f: Tensor) -> Tensor:
    """The label of every example, or the predicted class where there are no labels."""  # (n,)
    y = batch.targets
    if y is None:
        return f.argmax(dim=1)
    if y.shape == f.shape and f.shape[1] > 1:  # one-hot or soft labels
        y = y.argmax(dim=1)
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


def log_samples(f: Tensor, variance: Tensor, num_samples: int, seed: int) -> Tensor:
    """log softmax of draws of the logits N(f, variance)."""  # (s, n, C)
    return torch.log_softmax(f + variance.sqrt() * normal_numbers(num_samples, f, seed), dim=-1)


def normal_numbers(num_samples: int, like: Tensor, seed: int) -> Tensor:
    """Standard normal numbers, others for every example: common ones would favour the same classes everywhere."""
    generator = child_generator(seed, "logits")
    return torch.randn(num_samples, *like.shape, generator=generator, dtype=torch.float64).to(like)  # (s, n, C)


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
