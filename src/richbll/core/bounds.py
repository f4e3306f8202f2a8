"""How far a posterior from few rows, or from projected features, can be off: the paper's theory as functions.

Each takes measured numbers and gives a `Bound`; where a premise fails it is inf and names that premise. K = max ‖φ‖ and
λ_min(E[φφᵀ]) belong to the distribution of the data: with both measured on a sample (`feature_scale`) the result is an
estimate. Only `relative_subsample_error` and the two stability bounds are certain of what was measured.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from richbll.errors import OptionError, ShapeError
from richbll.linalg import svd


@dataclass(frozen=True)
class Bound:
    """An upper bound, or inf when its premise fails; `premise` is what holds, or the first thing that does not."""

    value: float
    premise: str
    holds: bool

    def __str__(self) -> str:
        return f"≤ {self.value:.4g}, as {self.premise}" if self.holds else f"no bound, as this fails: {self.premise}"


@dataclass(frozen=True)
class FeatureScale:
    """What the bounds need to know about features φ."""

    K: float  # max ‖φ‖
    lambda_min: float  # smallest eigenvalue of Σ = mean φφᵀ
    rank: int  # of Σ
    leverage: float  # κ = max φᵀΣ⁺φ ≥ rank, the same for φ^r and φ^L


def feature_scale(phi: Tensor) -> FeatureScale:
    """K, λ_min(Σ), rank and leverage κ of the rows of φ (n, r).

    Examples:
        >>> feature_scale(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        FeatureScale(K=2.0, lambda_min=0.5, rank=2, leverage=2.0)
    """
    if phi.ndim != 2 or not phi.numel():
        raise ShapeError(f"Features of shape {tuple(phi.shape)} have no scale: give (n, r) with n, r ≥ 1.")
    n, r = phi.shape
    U, s, _ = svd("the features", phi.to(torch.float64))  # (n, ρ), (ρ,)
    rank = int((s > s[0] * max(n, r) * torch.finfo(torch.float64).eps).sum())
    return FeatureScale(
        K=torch.linalg.vector_norm(phi.to(torch.float64), dim=-1).max().item(),
        lambda_min=s[-1].item() ** 2 / n if rank == r else 0.0,
        rank=rank,
        leverage=n * U[:, :rank].square().sum(dim=-1).max().item(),
    )


def matrix_bernstein(n: int, R: float, m: int, r: int, delta: float) -> Bound:
    """‖mean Z_i‖₂ ≤ R √(8/(3n) log((m+r)/δ)), Z_i (m, r) independent, centred, ‖Z_i‖₂ ≤ R (matrix Bernstein lemma).

    Examples:
        >>> print(matrix_bernstein(n=1000, R=1.0, m=2, r=2, delta=0.05))
        ≤ 0.1081, as n = 1,000 ≥ 12 = (8/3) log((m+r)/δ)
    """
    need = 8 / 3 * _log(m + r, delta)
    return _bound(R * math.sqrt(need / n), _at_least("n", n, need, "(8/3) log((m+r)/δ)"))


def population_deviation(k: int, r: int, K: float, delta: float) -> Bound:
    """η_k = 2K² √(8/(3k) log(4r/δ)) ≥ ‖Σ̂_k − Σ‖₂ and ‖Σ̂_N − Σ‖₂ at once (Bernstein for the population matrix).

    Examples:
        >>> print(population_deviation(k=1000, r=2, K=1.0, delta=0.05))
        ≤ 0.2327, as n = 1,000 ≥ 14 = (8/3) log((m+r)/δ)
    """
    return matrix_bernstein(k, 2 * K**2, r, r, delta / 2)


def projection_error(
    N: int, m: int, r: int, K: float, lambda_min: float, delta: float, residual: float | None = None
) -> Bound:
    """‖Â − A‖₂ ≤ K' √(log(2(m+r)/δ)/N), K' = √(8/3) (1 + K²/λ_min) 4K²/λ_min (Theorem 3.4); N is k for a subsample.

    K bounds ‖φ^m‖ and ‖φ^r‖, λ_min = λ_min(E[φ^rφ^rᵀ]). The last step of the proof needs m ≥ r; for m < r the larger
    of its two logarithms is log(4r/δ), and that is used here. With `residual` ≥ ‖φ^m − Aφ^r‖ it is sharper (ours):
    Â − A = mean[(φ^m − Aφ^r)φ^rᵀ] Σ̂⁻¹, a centred mean, so K' = √(8/3) 2K residual/λ_min.

    Examples:
        >>> print(projection_error(N=100, m=10, r=2, K=1.0, lambda_min=0.5, delta=0.05))
        no bound, as this fails: N = 100 ≥ 867 = (8/3) log(4r/δ) (4K²/λ_min)²
    """
    need, ratio = 8 / 3 * _log(2 * (max(m, r) + r), delta), _ratio(K**2, lambda_min)
    scale = (1 + ratio) * 4 * ratio if residual is None else 2 * _ratio(K * residual, lambda_min)
    return _bound(
        scale * math.sqrt(need / N),
        _positive("λ_min", lambda_min),
        _at_least("N", N, need, "(8/3) log(2(m+r)/δ)"),
        _at_least("N", N, required_subsample(r, K, lambda_min, delta, margin=4), "(8/3) log(4r/δ) (4K²/λ_min)²"),
    )


def subsampled_posterior(k: int, r: int, K: float, lambda_min: float, delta: float, num_test: int = 1) -> Bound:
    """‖S^{B,k} − S^B‖₂ ≤ N' 2K⁴/λ_min(Σ) √(8/(3k) log(4r/δ)), Σ = E[φ^Lφ^Lᵀ], K ≥ ‖φ^L‖, any N ≥ k (Theorem 3.5).

    One fixed L for both. The alternative bound below is never larger, and asks for a quarter of the rows.

    Examples:
        >>> print(subsampled_posterior(k=5000, r=2, K=1.0, lambda_min=0.5, delta=0.05))
        ≤ 0.2081, as λ_min = 0.5 > 0 and k = 5,000 ≥ 3,465 = (8/3) log(4r/δ) (8K²/λ_min)²
    """
    return _bound(
        num_test * K**2 * _ratio(population_deviation(k, r, K, delta).value, lambda_min),
        _positive("λ_min", lambda_min),
        _at_least("k", k, required_subsample(r, K, lambda_min, delta), "(8/3) log(4r/δ) (8K²/λ_min)²"),
    )


def subsampled_posterior_alternative(
    k: int, N: int, r: int, K: float, lambda_min: float, sigma2: float, delta: float, num_test: int = 1
) -> Bound:
    """‖S^{B,k} − S^B‖₂ ≤ N' 4K⁴ / (σ/N + λ_min/(2σ))² (1/N) √(8/(3k) log(4r/δ)) (alternative bound, appendix).

    It is 4s/(1+s)² ≤ 1 times the bound of Theorem 3.5, s = Nλ_min/(2σ²).

    Examples:
        >>> print(subsampled_posterior_alternative(5000, 10**5, 2, K=1.0, lambda_min=0.5, sigma2=0.01, delta=0.05))
        ≤ 3.33e-07, as σ² = 0.01 > 0 and λ_min = 0.5 > 0 and N = 100,000 ≥ 5,000 = k
          and k = 5,000 ≥ 867 = (8/3) log(4r/δ) (4K²/λ_min)²
    """
    scale = _ratio(2 * N * sigma2, (sigma2 + N * lambda_min / 2) ** 2)
    return _bound(
        num_test * K**2 * scale * population_deviation(k, r, K, delta).value,
        _positive("σ²", sigma2),
        _positive("λ_min", lambda_min),
        _at_least("N", N, k, "k"),
        _at_least("k", k, required_subsample(r, K, lambda_min, delta, margin=4), "(8/3) log(4r/δ) (4K²/λ_min)²"),
    )


def required_subsample(r: int, K: float, lambda_min: float, delta: float, margin: float = 8) -> float:
    """k = (8/3) log(4r/δ) (margin K²/λ_min)²: the premise of Theorem 3.5; with margin 4 of 3.4 and the alternative.

    K² ≥ tr Σ ≥ r λ_min, so it grows as r² log r at best: the 51 features of a small last layer need millions of rows.

    Examples:
        >>> f"{required_subsample(51, K=51**0.5, lambda_min=1.0, delta=0.05):,.0f}"  # the best case, K² = r λ_min
        '3,690,553'
    """
    need = 8 / 3 * _log(4 * r, delta) * (margin * _ratio(K**2, lambda_min)) ** 2
    return float(math.ceil(need)) if math.isfinite(need) else math.inf


def inverse_difference(eps: float) -> Bound:
    """sup_t≥0 |1/(1+t) − 1/(1+(1+ε)t)| = |ε|/(1+√(1+ε))², attained at t = 1/√(1+ε) (inverse-difference lemma).

    The lemma as it is stated follows: at most ε/4 for ε ≥ 0, and at most |ε|/2 for 0 > ε ≥ 2 − 2√2.

    Examples:
        >>> inverse_difference(3.0).value
        0.3333333333333333
    """
    return _bound(abs(eps) / (1 + math.sqrt(max(1 + eps, 0))) ** 2, (f"ε = {eps:.4g} > −1", eps > -1))


def relative_subsample_error(k: int, rank: int, leverage: float, delta: float) -> Bound:
    """−ρ S^B ⪯ S^{B,k} − S^B ⪯ ρ S^B, ρ = ε/(1−ε), with kε²/2 = κ (1 + ε/3) log(2 rank/δ) (ours, not the paper's).

    Bernstein for ψψᵀ − I, ψ = Σ̂_N^{-½}φ: κ bounds its norm, and its square in the mean. Only the choice of k rows
    without replacement is random (Gross and Nesme, 2010), so the data and the network are what they are, and L is any
    matrix, also one fitted to that data. It asks for κ log r rows, κ ≥ r.

    Examples:
        >>> print(relative_subsample_error(k=15_000, rank=51, leverage=51.0, delta=0.05))
        ≤ 0.3097, as ε = 0.2364 < 1
    """
    a = leverage * _log(2 * rank, delta) / k  # ε² = 2a (1 + ε/3)
    eps = a / 3 + math.sqrt((a / 3) ** 2 + 2 * a)
    return _bound(_ratio(eps, 1 - eps), (f"ε = {eps:.4g} < 1", eps < 1))


def required_for_relative_error(rho: float, rank: int, leverage: float, delta: float) -> int:
    """The smallest k with `relative_subsample_error` ≤ ρ: 2κ (1 + ε/3) log(2 rank/δ)/ε², ε = ρ/(1+ρ).

    Examples:
        >>> required_for_relative_error(0.3, rank=51, leverage=51.0, delta=0.05)
        15719
    """
    eps = rho / (1 + rho)
    return math.ceil(2 * leverage * (1 + eps / 3) * _log(2 * rank, delta) / eps**2)


Norms = tuple[float, float]  # ‖Φ^p‖₂ and ‖Φ^B‖₂


def posterior_stability(train: Norms, test: Norms, eps_x: float, eps_test: float, sigma2: float) -> Bound:
    """‖S^ntk − S^B‖₂ ≤ (‖Φ^p'‖ + ‖Φ^B'‖) ε_x' + ‖Φ^p'‖‖Φ^B'‖ (‖Φ^p‖ + ‖Φ^B‖) ε_x/σ² (stability proposition).

    Examples:
        >>> print(posterior_stability(train=(30.0, 29.0), test=(1.0, 1.0), eps_x=0.1, eps_test=0.01, sigma2=0.1))
        ≤ 59.02, as σ² = 0.1 > 0
    """
    value = sum(test) * eps_test + test[0] * test[1] * sum(train) * _ratio(eps_x, sigma2)
    return _bound(value, _positive("σ²", sigma2))


def least_squares_stability(test: Norms, eps_x: float, eps_test: float, sigma2: float, ridge: float = 0.0) -> Bound:
    """‖S^ntk − S^B‖₂ ≤ (‖Φ^p'‖ + ‖Φ^B'‖) ε_x' + ‖Φ^p'‖‖Φ^B'‖ ε_x²/(σ² + ε_x²) (ours, never above the proposition).

    Least squares gives Φ^B = P_rΦ^p, so Φ^pᵀΦ^p − Φ^BᵀΦ^B = EᵀE with E = (I − P_r)Φ^p: the residual enters squared,
    and the size of the training features not at all.

    Examples:
        >>> print(least_squares_stability(test=(1.0, 1.0), eps_x=0.1, eps_test=0.01, sigma2=0.1))
        ≤ 0.1109, as σ² = 0.1 > 0 and A is plain least squares (ridge 0)
    """
    value = sum(test) * eps_test + test[0] * test[1] * _ratio(eps_x**2, sigma2 + eps_x**2)
    return _bound(value, _positive("σ²", sigma2), (f"A is plain least squares (ridge {ridge:.4g})", ridge == 0))


def _bound(value: float, *premises: tuple[str, bool]) -> Bound:
    """The value when all premises hold, else inf and the first that does not."""
    for text, holds in premises:
        if not holds:
            return Bound(math.inf, text, holds=False)
    return Bound(value, " and ".join(text for text, _ in premises), holds=True)


def _at_least(name: str, have: float, need: float, meaning: str) -> tuple[str, bool]:
    return f"{name} = {have:,} ≥ {need:,.0f} = {meaning}", have >= need


def _positive(name: str, value: float) -> tuple[str, bool]:
    return f"{name} = {value:.4g} > 0", value > 0


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.inf


def _log(dimension: int, delta: float) -> float:
    if not 0 < delta < 1:
        raise OptionError(f"delta={delta!r}: the probability that a bound fails must lie in (0, 1).")
    return math.log(max(dimension, 1) / delta)
