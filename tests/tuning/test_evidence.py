"""The evidence against the dense marginal likelihood, and its one maximum."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbll.errors import DataError, NonFiniteError, OptionError, ShapeError
from richbll.tuning.evidence import log_evidence, tune_by_evidence


def linear_model(seed: int, N: int = 30, r: int = 5, sigma2: float = 0.3, tau2: float = 2.0):
    """Features, targets and a prior covariance BᵀB of a Bayesian linear model, drawn from it."""
    rng = np.random.default_rng(seed)
    phi, A = rng.normal(size=(N, r)), rng.normal(size=(3, r))
    BtB = np.eye(r) + A.T @ A
    w = np.sqrt(tau2) * np.linalg.cholesky(BtB) @ rng.normal(size=r)
    return phi, phi @ w + np.sqrt(sigma2) * rng.normal(size=N), BtB


def parts(phi, y, BtB, w):
    """What the evidence needs, at weights w."""
    L = np.linalg.cholesky(BtB)
    eigenvalues = np.linalg.eigvalsh(L.T @ phi.T @ phi @ L).clip(0)
    arrays = np.array([np.sum((y - phi @ w) ** 2)]), eigenvalues[None], np.array([w @ np.linalg.solve(BtB, w)])
    e2, lam, w2 = map(torch.from_numpy, arrays)
    return e2, len(y), lam, w2


def arbitrary(seed: int, c: int = 3):
    """Any residuals, eigenvalues and weights: over many magnitudes, with zeros among the eigenvalues."""
    rng = np.random.default_rng(seed)
    r, N = int(rng.integers(1, 12)), int(rng.integers(1, 500))
    lam = 10 ** rng.uniform(-6, 4, size=(c, r))
    lam[:, 1:][rng.random((c, r - 1)) < 0.2] = 0
    e2, w2 = 10 ** rng.uniform(-5, 5, size=(2, c))
    return torch.from_numpy(e2), N, torch.from_numpy(lam), torch.from_numpy(w2)


@pytest.mark.parametrize(("sigma2", "tau2"), [(0.3, 2.0), (0.01, 0.1), (5.0, 40.0)])
def test_it_is_the_log_marginal_likelihood_of_a_linear_model(sigma2, tau2) -> None:
    """At the posterior mode: log N(y; 0, τ² Φ BᵀB Φᵀ + σ² I), and the Laplace terms added up one by one."""
    phi, y, BtB = linear_model(0)
    N, r = phi.shape
    prior_prec = np.linalg.inv(BtB) / tau2
    posterior_prec = phi.T @ phi / sigma2 + prior_prec
    w = np.linalg.solve(posterior_prec, phi.T @ y / sigma2)
    got = log_evidence(*parts(phi, y, BtB, w), sigma2=sigma2, tau2=tau2).item()

    K = tau2 * phi @ BtB @ phi.T + sigma2 * np.eye(N)
    marginal = -0.5 * (N * np.log(2 * np.pi) + np.linalg.slogdet(K)[1] + y @ np.linalg.solve(K, y))
    log_likelihood = -0.5 * N * np.log(2 * np.pi * sigma2) - np.sum((y - phi @ w) ** 2) / (2 * sigma2)
    log_prior = -0.5 * (r * np.log(2 * np.pi) - np.linalg.slogdet(prior_prec)[1] + w @ prior_prec @ w)
    laplace = log_likelihood + log_prior + 0.5 * (r * np.log(2 * np.pi) - np.linalg.slogdet(posterior_prec)[1])
    assert got == pytest.approx(marginal, rel=1e-10)
    assert got == pytest.approx(laplace, rel=1e-10)


@given(st.integers(0, 10**6))
def test_it_solves_both_equations(seed) -> None:
    e2, N, lam, w2 = arbitrary(seed)
    scales = tune_by_evidence(e2, N, lam, w2)
    sigma2, tau2 = scales.noise_variance, scales.prior_variance
    assert sigma2.dtype == tau2.dtype == torch.float64
    signal = tau2[:, None] * lam
    gamma = (signal / (sigma2[:, None] + signal)).sum(-1)
    torch.testing.assert_close(tau2 * gamma, w2, rtol=1e-9, atol=0)
    rest = (sigma2[:, None] / (sigma2[:, None] + signal)).sum(-1)  # r − γ: N − γ loses digits when γ is near N
    torch.testing.assert_close(sigma2 * (N - lam.shape[1] + rest), e2, rtol=1e-9, atol=1e-9 * float((sigma2 * N).max()))


@given(st.integers(0, 10**6))
def test_the_gradient_vanishes_there_and_no_grid_point_is_better(seed) -> None:
    data = arbitrary(seed)
    N = data[1]
    scales = tune_by_evidence(*data)
    sigma2, tau2 = scales.noise_variance, scales.prior_variance
    best = log_evidence(*data, sigma2, tau2)
    h = 1e-4
    scale = N + data[2].shape[1]
    by_sigma2 = (log_evidence(*data, sigma2 * np.exp(h), tau2) - log_evidence(*data, sigma2 * np.exp(-h), tau2)) / (
        2 * h
    )
    by_tau2 = (log_evidence(*data, sigma2, tau2 * np.exp(h)) - log_evidence(*data, sigma2, tau2 * np.exp(-h))) / (2 * h)
    assert by_sigma2.abs().max().item() < 1e-6 * scale
    assert by_tau2.abs().max().item() < 1e-6 * scale
    for a in np.logspace(-6, 6, 13):
        for b in np.logspace(-6, 6, 13):
            assert bool((log_evidence(*data, a * sigma2, b * tau2) <= best + 1e-9 * best.abs()).all())


@given(st.integers(0, 10**6), st.integers(-20, 20))
def test_rescaled_outputs_rescale_the_noise_and_leave_the_prior(seed, power) -> None:
    e2, N, lam, w2 = arbitrary(seed)
    factor = 4.0**power
    once, again = tune_by_evidence(e2, N, lam, w2), tune_by_evidence(factor * e2, N, factor * lam, w2)
    torch.testing.assert_close(again.noise_variance, factor * once.noise_variance, rtol=1e-9, atol=0)
    torch.testing.assert_close(again.prior_variance, once.prior_variance, rtol=1e-9, atol=0)


def test_the_true_scales_are_recovered() -> None:
    """Weights at the posterior mode, alternated with the scales (MacKay): the truth within sampling error."""
    found = []
    for seed in range(30):
        phi, y, BtB = linear_model(seed, N=200, r=40)
        sigma2, tau2 = 1.0, 1.0
        for _ in range(8):
            w = np.linalg.solve(phi.T @ phi / sigma2 + np.linalg.inv(BtB) / tau2, phi.T @ y / sigma2)
            scales = tune_by_evidence(*parts(phi, y, BtB, w))
            sigma2, tau2 = scales.noise_variance.item(), scales.prior_variance.item()
        found.append(np.log([sigma2, tau2]))
    error = np.mean(found, 0) - np.log([0.3, 2.0])
    standard = np.std(found, 0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(error) < 3 * standard + [1 / 160, 1 / 40]).all(), (error, standard)  # the logarithm's own bias
    assert (standard < 0.05).all()


def test_without_weights_or_residuals_there_is_no_maximum() -> None:
    e2, N, lam, w2 = torch.tensor([1.0, 1.0]), 10, torch.ones(2, 3), torch.tensor([1.0, 1.0])
    zero = torch.tensor([1.0, 0.0])
    with pytest.raises(DataError, match=r"Output 1: the training residuals are exactly zero.*Tune on validation data"):
        tune_by_evidence(zero, N, lam, w2)
    with pytest.raises(DataError, match=r"Output 1: the last layer's weights are exactly zero"):
        tune_by_evidence(e2, N, lam, zero)
    with pytest.raises(DataError, match=r"Output 1: the last-layer features are zero"):
        tune_by_evidence(e2, N, lam * zero[:, None], w2)


def test_inputs_are_checked_at_the_door() -> None:
    e2, N, lam, w2 = torch.tensor([1.0]), 10, torch.ones(1, 3), torch.tensor([1.0])
    with pytest.raises(ShapeError, match=r"\(1,\), \(1, 3\) and \(2,\)"):
        tune_by_evidence(e2, N, lam, torch.ones(2))
    with pytest.raises(DataError, match="num_data=0"):
        tune_by_evidence(e2, 0, lam, w2)
    with pytest.raises(NonFiniteError, match="residual_sq"):
        tune_by_evidence(e2 * torch.nan, N, lam, w2)
    with pytest.raises(DataError, match="eigenvalues cannot be negative"):
        tune_by_evidence(e2, N, -lam, w2)
    with pytest.raises(OptionError, match="tau2=0"):
        log_evidence(e2, N, lam, w2, sigma2=1.0, tau2=0)
