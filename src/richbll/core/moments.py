"""What reading the data leaves behind. Moments of batches, shards and ranks add up."""

from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.errors import ShapeError


@dataclass(frozen=True)
class Moments:
    """Second moments of the rows that were read, float64.

    `num_rows` rows stand for `num_data` examples (N/k scaling, section 3.3 of the paper).
    """

    num_rows: int
    num_data: int
    gram_projection: Tensor  # (r, r)  Σ φ^r φ^rᵀ, unscaled
    residual_sq: Tensor | None  # (c,)   Σ (y − f)² per output; None when a batch had no targets

    @property
    def row_weight(self) -> float:
        """N/k: how many examples one row stands for."""
        return self.num_data / self.num_rows

    @property
    def gram_posterior(self) -> Tensor:
        """Σ (N/k) φ^r φ^rᵀ, the data term of the posterior."""
        return self.row_weight * self.gram_projection

    def __add__(self, other: "Moments") -> "Moments":
        if self.gram_projection.shape != other.gram_projection.shape:
            raise ShapeError(
                f"Moments of {self.gram_projection.shape[0]} and {other.gram_projection.shape[0]} features "
                "cannot be added: they come from different last layers."
            )
        has_residuals = self.residual_sq is not None and other.residual_sq is not None
        return Moments(
            num_rows=self.num_rows + other.num_rows,
            num_data=self.num_data + other.num_data,
            gram_projection=self.gram_projection + other.gram_projection,
            residual_sq=self.residual_sq + other.residual_sq if has_residuals else None,  # type: ignore[operator]
        )


def batch_moments(phi_r: Tensor, f: Tensor, y: Tensor | None) -> Moments:
    """Moments of one batch: φ^r (n, r), outputs f (n, c), targets y (n, c) or None."""
    phi = phi_r.to(torch.float64)
    residual = None if y is None else (y.to(torch.float64) - f.to(torch.float64)).square().sum(dim=0)
    return Moments(
        num_rows=len(phi),
        num_data=len(phi),
        gram_projection=phi.mT @ phi,  # (r, r)
        residual_sq=residual,
    )
