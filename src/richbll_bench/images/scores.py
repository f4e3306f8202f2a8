"""How strange is an image? Scores that are larger for stranger images.

From the network's logits f alone: energy −log Σ exp f. From probabilities p: entropy, and 1 − max p. From a posterior
over logits: the predicted class's variance, and the mutual information. From the features a alone:

    v_c(x) = uᵀ (I + N_c/(k σ²) Σ_i u_i u_iᵀ)⁻¹ u,   u = a / ‖a‖,   i of class c

the variance of unit-length features, of the predicted class or the least of all; images that a network is sure of have
large features, so without the division the variance follows their length. Scores are combined by adding them up, each
less its mean over the validation images and divided by their standard deviation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll import ClassPredictive
from richbll_bench.images.task import Seen

_NOISE = 0.1  # the paper's
_LOGARITHMIC = ("variance", "unit_variance", "unit_variance_least", "relative_variance")  # where they are added up
COMBINED = (
    ("entropy", "variance"),
    ("entropy", "unit_variance"),
    ("entropy", "energy"),
    ("energy", "unit_variance"),
    ("entropy", "energy", "unit_variance"),
)


@dataclass(frozen=True)
class UnitVariance:
    """The posterior of unit-length features, one for each class."""

    roots: Tensor  # (C, d, d) of the inverses: v_c = ‖uᵀ root_c‖²

    def of(self, features: Tensor) -> Tensor:
        """v_c for every class."""  # (n, C)
        u = unit(features)
        return torch.stack([(u @ root).square().sum(dim=1) for root in self.roots], dim=1)


def unit_variance(seen: Seen, labels: Tensor, num_classes: int, weight: float) -> UnitVariance:
    """From images with labels, each of which stands for `weight` = N_c/k ones."""
    u, d = unit(seen.features), seen.features.shape[1]
    roots = []
    for label in range(num_classes):
        rows = u[labels == label]
        precision = torch.eye(d, dtype=u.dtype) + weight / _NOISE * rows.mT @ rows
        lower = torch.linalg.cholesky(precision)
        roots.append(torch.linalg.solve_triangular(lower, torch.eye(d, dtype=u.dtype), upper=False).mT)
    return UnitVariance(torch.stack(roots))


def unit(features: Tensor) -> Tensor:
    """a / ‖a‖ in float64."""  # (n, d)
    return torch.nn.functional.normalize(features.double(), dim=1)


def of_probabilities(log_probs: Tensor) -> dict[str, Tensor]:
    """Of probabilities, however they were made."""
    return {
        "max_prob": 1 - log_probs.exp().amax(dim=1),
        "entropy": torch.special.entr(log_probs.exp()).sum(dim=1),
    }


def of_logits(logits: Tensor) -> dict[str, Tensor]:
    """Of a network alone."""
    return of_probabilities(logits.log_softmax(dim=1)) | {"energy": -torch.logsumexp(logits, dim=1)}


def of_posterior(predictive: ClassPredictive, seen: Seen) -> dict[str, Tensor]:
    """Of a Gaussian over logits; the predicted class is the network's."""
    variance = predictive.variance_of(predictive.logits.argmax(dim=1))
    return {
        **of_probabilities(predictive.probs.log()),
        "energy": -torch.logsumexp(predictive.logits, dim=1),
        "variance": variance,
        "relative_variance": variance / seen.features.double().square().sum(dim=1).clamp_min(1e-12),
        "mutual_information": predictive.mutual_information,
    }


def of_features(found: UnitVariance, seen: Seen) -> dict[str, Tensor]:
    """Of unit-length features."""
    variances = found.of(seen.features)  # (n, C)
    predicted = seen.logits.argmax(dim=1, keepdim=True)
    return {
        "unit_variance": variances.gather(1, predicted).squeeze(1),
        "unit_variance_least": variances.amin(dim=1),
    }


@dataclass(frozen=True)
class Combination:
    """Adds up scores in units of their spread over the validation images."""

    centers: Mapping[str, float]
    spreads: Mapping[str, float]

    def of(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every combination whose parts are there, under their names with +."""
        units = {
            name: (_additive(name, scores[name]) - self.centers[name]) / self.spreads[name] for name in self.centers
        }
        return {
            "+".join(names): torch.stack([units[name] for name in names]).sum(dim=0)
            for names in COMBINED
            if set(names) <= units.keys()
        }


def combination(validation: Mapping[str, Tensor]) -> Combination:
    """Measured on the scores of validation images."""
    parts = {name for names in COMBINED for name in names} & validation.keys()
    values = {name: _additive(name, validation[name]) for name in sorted(parts)}
    return Combination(
        {name: float(value.mean()) for name, value in values.items()},
        {name: max(float(value.std()), 1e-12) for name, value in values.items()},
    )


def _additive(name: str, score: Tensor) -> Tensor:
    return score.clamp_min(1e-300).log() if name in _LOGARITHMIC else score
