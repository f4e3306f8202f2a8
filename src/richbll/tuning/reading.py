"""What tuning needs of validation data, read once: squares, errors, logits and labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from richbll.checks import human_bytes
from richbll.errors import DataError, MemoryBudgetError
from richbll.fitted import Fitted
from richbll.network.batches import Stream
from richbll.network.network import Network
from richbll.network.untouched import untouched


@dataclass(frozen=True)
class Validation:
    """Validation points as the posterior sees them."""

    squares: Tensor  # (n, g, r) (φ^r(x)ᵀw_j)²
    mean: Tensor  # (n, c) in the precision of the model's output
    targets: Tensor  # (n, …) as given
    weights: Tensor | None = None  # (n, c) 1/σ²(x), where the noise is a function of the input


def read_validation(network: Network, data: Any, fitted: Fitted, memory: int, progress: bool | None) -> Validation:
    """Run the model over held-out data and keep what every trial of a scale needs."""
    squares, means, targets, weights, used = [], [], [], [], 0
    with untouched(network.model):
        for batch in Stream(data, network.device, progress).batches("validation"):
            phi_r, f = network.features(batch)
            if batch.targets is None:
                raise DataError(f"{batch.where} has no targets: tuning and calibration need held-out targets.")
            reading = network.reader.read(batch, f)  # checks the targets
            labels = batch.targets if reading.columns is None else reading.columns
            part = torch.einsum("nr,grj->ngj", fitted.beside(phi_r), fitted.posterior.W).square()
            used += part.numel() * part.element_size() + f.numel() * f.element_size()
            if used > memory // 2:
                raise MemoryBudgetError(
                    f"{batch.start + batch.size} validation points take {human_bytes(used)}, more than half of "
                    f"memory_budget ({human_bytes(memory)}). Give fewer points; a few thousand are plenty."
                )
            squares.append(part)
            means.append(f.to(part.device))
            targets.append(labels.to(part.device))
            if reading.weights is not None and reading.residuals is not None:
                weights.append(reading.weights.to(part.device))
    return Validation(torch.cat(squares), torch.cat(means), torch.cat(targets), torch.cat(weights) if weights else None)
