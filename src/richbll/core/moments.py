"""What reading the data leaves behind. Moments of batches, shards and ranks add up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from richbll.errors import ShapeError
from richbll.linalg import gram
from richbll.precision import in_float64


@dataclass(frozen=True)
class Moments:
    """Second moments of the rows that were read, float64.

    `num_rows` rows stand for `num_data` examples (N/k scaling, section 3.3 of the paper). Where examples have weights
    of their own, in one or several posteriors, `gram_weighted` holds them.
    """

    num_rows: int
    num_data: int
    gram_projection: Tensor  # (r, r)  Σ φ^r φ^rᵀ, unscaled
    gram_weighted: Tensor | None = None  # (g, r, r)  Σ weight φ^r φ^rᵀ; None when every weight is 1
    residual_sq: Tensor | None = None  # (c,)   Σ (y − f)² per output; None when a batch had no targets

    @property
    def row_weight(self) -> float:
        """N/k: how many examples one row stands for."""
        return self.num_data / self.num_rows

    @property
    def gram_posterior(self) -> Tensor:
        """The data term of each posterior, scaled by N/k."""  # (g, r, r)
        gram = self.gram_projection.unsqueeze(0) if self.gram_weighted is None else self.gram_weighted
        return self.row_weight * gram

    def __add__(self, other: "Moments") -> "Moments":
        if self.gram_projection.shape != other.gram_projection.shape:
            raise ShapeError(
                f"Moments of {self.gram_projection.shape[0]} and {other.gram_projection.shape[0]} features "
                "cannot be added: they come from different last layers."
            )
        return Moments(
            num_rows=self.num_rows + other.num_rows,
            num_data=self.num_data + other.num_data,
            gram_projection=self.gram_projection + other.gram_projection,
            gram_weighted=_sum_where_both(self.gram_weighted, other.gram_weighted),
            residual_sq=_sum_where_both(self.residual_sq, other.residual_sq),
        )


def _sum_where_both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return None if a is None or b is None else a + b


def moments_of_batches(phi_r: Sequence[Tensor], residuals: Sequence[Tensor]) -> Moments:
    """Moments of several batches without weights, of all or none of which the residuals are known."""
    num_rows = sum(len(phi) for phi in phi_r)
    squared = [in_float64(more).square().sum(dim=0) for more in residuals]
    return Moments(
        num_rows=num_rows,
        num_data=num_rows,
        gram_projection=gram(*phi_r),  # (r, r)
        residual_sq=torch.stack(squared).sum(dim=0) if squared else None,
    )


def batch_moments(phi_r: Tensor, weights: Tensor | None = None, residuals: Tensor | None = None) -> Moments:
    """Moments of one batch: φ^r (n, r), weights (n, g) in g posteriors, residuals (n, c)."""
    moments = moments_of_batches([phi_r], [] if residuals is None else [residuals])
    if weights is None:
        return moments
    phi_r, weights = in_float64(phi_r), in_float64(weights)
    gram_weighted = phi_r.new_zeros(weights.shape[1], phi_r.shape[1], phi_r.shape[1])
    for k in (weights != 0).any(dim=0).nonzero().flatten().tolist():  # of many classes a batch has few
        used = weights[:, k] != 0
        gram_weighted[k] = phi_r[used].mT @ (weights[used, k].unsqueeze(1) * phi_r[used])
    return replace(moments, gram_weighted=gram_weighted)
