"""σ² and τ² from validation data: both by negative log-likelihood, or σ² alone by squared error (the paper's)."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.checks import finite_rows, positive_per_output
from richbll.errors import DataError, OptionError, RichBLLWarning, ShapeError
from richbll.tuning.ratio import BestRatio, best_ratio


@dataclass(frozen=True)
class Scales:
    """Noise and prior variance per output, float64.

    Examples:
        >>> Scales(noise_variance=torch.ones(2), prior_variance=torch.ones(2)).noise_variance
        tensor([1., 1.])
    """

    noise_variance: Tensor  # (c,) σ²
    prior_variance: Tensor  # (c,) τ²


def tune_by_nll(
    squares: Tensor,
    eigenvalues: Tensor,
    errors_sq: Tensor,
    *,
    noise_variance: float | Tensor | None = None,
    prior_variance: float | Tensor | None = None,
) -> Scales:
    """The σ² and τ² of least mean validation NLL of N(y; f, v + σ²), each output by itself.

    v = Σ_j (φ^r(x)ᵀw_j)² d_j with d_j = τ² / (1 + τ² λ_j / σ²). Where the data does not tell scales apart (to 1e-6
    nats per point) the smallest τ² is taken. An optimum at an edge of the search gives a `RichBLLWarning`.

    Args:
        squares: (φ^r(x)ᵀw_j)² at the validation points, (n, c, r).
        eigenvalues: λ_j, (c, r).
        errors_sq: (y − f)², (n, c).
        noise_variance: σ² when it is known; only τ² is searched then.
        prior_variance: τ² when it is known; only σ² is searched then.

    Examples:
        >>> squares, eigenvalues = torch.rand(500, 1, 4), torch.tensor([[8.0, 4.0, 2.0, 0.0]])
        >>> v = (squares * 2 / (1 + 2 * eigenvalues / 0.1)).sum(-1)  # σ² = 0.1, τ² = 2
        >>> scales = tune_by_nll(squares, eigenvalues, v + 0.1)
        >>> print(f"{scales.noise_variance.item():.2f} {scales.prior_variance.item():.2f}")
        0.10 2.00
    """
    squares, eigenvalues, errors_sq = squares.detach(), eigenvalues.detach(), errors_sq.detach()
    _check_points(squares, eigenvalues, errors_sq)
    if noise_variance is not None and prior_variance is not None:
        raise OptionError("noise_variance and prior_variance are both given: there is nothing left to tune.")
    c = errors_sq.shape[1]
    sigma2 = _given("noise_variance", noise_variance, c)
    tau2 = _given("prior_variance", prior_variance, c)
    best = [
        best_ratio(squares[:, k], eigenvalues[k], errors_sq[:, k], known_sigma2, known_tau2)
        for k, (known_sigma2, known_tau2) in enumerate(zip(sigma2, tau2, strict=True))
    ]
    pairs = [
        (known_sigma2 or one.sigma2, known_tau2 or one.rho * one.sigma2)
        for one, known_sigma2, known_tau2 in zip(best, sigma2, tau2, strict=True)
    ]
    scales = Scales(*torch.tensor(pairs, dtype=torch.float64, device=eigenvalues.device).unbind(dim=1))
    for message in _edge_messages(best, scales, tau2_is_given=prior_variance is not None):
        warnings.warn(message, RichBLLWarning, stacklevel=2)
    return scales


def tune_by_mse(errors_sq: Tensor, prior_variance: float | Tensor) -> Scales:
    """σ² = mean (y − f)² per output over the validation points, as in the paper; τ² as it is.

    Args:
        errors_sq: (y − f)², (n, c).
        prior_variance: τ², one number or one per output.

    Examples:
        >>> tune_by_mse(torch.tensor([[1.0], [3.0]]), prior_variance=1.0).noise_variance
        tensor([2.], dtype=torch.float64)
    """
    if errors_sq.ndim != 2:
        raise ShapeError(f"errors_sq has shape {tuple(errors_sq.shape)}: it must be (points, outputs).")
    sigma2 = _mean_errors(errors_sq.detach())
    tau2 = positive_per_output("prior_variance", prior_variance, len(sigma2))
    return Scales(noise_variance=sigma2, prior_variance=tau2.to(sigma2.device))


def _given(name: str, value: float | Tensor | None, c: int) -> list[float] | list[None]:
    return [None] * c if value is None else positive_per_output(name, value, c).tolist()


def _edge_messages(best: list[BestRatio], scales: Scales, tau2_is_given: bool) -> list[str]:
    """What to say about optima at an edge: one message for each way in which the data does not bound a scale."""
    low = [k for k, one in enumerate(best) if one.at_lower_edge]
    high = [k for k, one in enumerate(best) if one.at_upper_edge and not one.at_lower_edge]
    sigma2, tau2 = ("noise_variance", scales.noise_variance), ("prior_variance", scales.prior_variance)
    if tau2_is_given:  # a small ρ is then a large σ²
        cases = [(sigma2, low, "largest", "upper"), (sigma2, high, "smallest", "lower")]
    else:
        cases = [
            (tau2, low, "smallest", "lower"),
            (tau2, [k for k in high if not best[k].noise_vanishes], "largest", "upper"),
            (sigma2, [k for k in high if best[k].noise_vanishes], "smallest", "lower"),
        ]
    messages = []
    for (name, values), outputs, which, side in cases:
        if outputs:
            shown = ", ".join(f"{values[k].item():.3g} (output {k})" for k in outputs[:5])
            shown += ", …" if outputs[5:] else ""
            messages.append(
                f"{name}={shown}: the {which} value searched fits the validation data best or as well, so the data "
                f"gives {name} no {side} bound. Use more validation data, as varied as what the model will meet, or "
                f"set {name} yourself."
            )
    return messages


def _check_points(squares: Tensor, eigenvalues: Tensor, errors_sq: Tensor) -> None:
    if squares.ndim != 3 or errors_sq.shape != squares.shape[:2] or eigenvalues.shape != squares.shape[1:]:
        raise ShapeError(
            f"squares (n, c, r), eigenvalues (c, r) and errors_sq (n, c) do not agree: they are "
            f"{tuple(squares.shape)}, {tuple(eigenvalues.shape)} and {tuple(errors_sq.shape)}."
        )
    _mean_errors(errors_sq)
    finite_rows("squares", "the validation data", squares)
    finite_rows("eigenvalues", "the posterior (a row per output)", eigenvalues)
    smallest = min(squares.min().item(), eigenvalues.min().item())
    if smallest < 0:
        raise DataError(f"squares and eigenvalues cannot be negative, but the smallest is {smallest:.3g}.")
    if not bool((squares.sum(dim=(0, 2)) > 0).all()):
        raise DataError(
            "All features are zero at the validation points, so the likelihood does not depend on prior_variance: "
            'use other validation data, or method="mse".'
        )


def _mean_errors(errors_sq: Tensor) -> Tensor:
    """Mean squared error per output, positive."""  # (c,)
    if len(errors_sq) == 0:
        raise DataError("There are no validation points: give at least one, better some hundreds.")
    finite_rows("squared errors", "the validation data", errors_sq)
    if bool((errors_sq < 0).any()):
        raise DataError(f"Squared errors cannot be negative, but the smallest is {errors_sq.min().item():.3g}.")
    mse = errors_sq.mean(dim=0, dtype=torch.float64)
    if bool((mse <= 0).any()):
        raise DataError(
            f"The model reproduces the validation targets of output {int((mse <= 0).nonzero()[0])} exactly, so they "
            "say nothing about the noise: give noise_variance=…, or validation data that was not used in training."
        )
    return mse
