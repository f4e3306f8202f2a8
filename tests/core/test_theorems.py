"""The paper's theorems as laws of the core, on arbitrary features: singular, scaled, too few rows."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbll.core.posterior import (
    covariance,
    effective_dimension,
    gram_root,
    posterior_in_basis,
    posterior_root,
    spectral_posterior,
    variance,
)
from richbll.core.projection import Projection, refined_projection, spectrum_of
from richbll.core.transform import kept_factor, transform
from tests.reference import dense


@st.composite
def features(draw):
    """Φ^r, Φ^m and test features, with dead, duplicated and constant columns at times."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    r, m = draw(st.integers(1, 8)), draw(st.integers(0, 12))
    N = draw(st.integers(1, 30))
    scale = 10.0 ** draw(st.integers(-2, 2))
    phi_r = scale * rng.normal(size=(N + 5, r))
    kind = draw(st.sampled_from(["full", "dead", "duplicate", "constant", "graded"]))
    if kind == "dead":
        phi_r[:, 0] = 0
    elif kind == "duplicate":
        phi_r[:, -1] = phi_r[:, 0]
    elif kind == "constant":
        phi_r[:, -1] = scale
    elif kind == "graded":
        phi_r *= np.logspace(0, -4, r)
    phi_m = rng.normal(size=(N + 5, m)) + phi_r @ rng.normal(size=(r, m)) / scale
    sigma2, tau2 = 10.0 ** draw(st.integers(-2, 1)), 10.0 ** draw(st.integers(-1, 1))
    ridge = draw(st.sampled_from([0.0, 0.1])) * scale**2
    return phi_r[:N], phi_m[:N], phi_r[N:], phi_m[N:], sigma2, tau2, ridge


def project(phi_r: np.ndarray, phi_m: np.ndarray) -> Projection:
    """The projection as the exact solver computes it, for one output."""
    R, M = torch.from_numpy(phi_r), torch.from_numpy(phi_m)
    spectrum = spectrum_of(R.mT @ R, len(R))
    U = R @ spectrum.rough_whitener
    C = M.mT @ U
    return refined_projection(spectrum, U.mT @ U[:, spectrum.num_sure :], (C.mT @ C)[None], M.square().sum()[None])


def root(projection: Projection, sigma2: float, tau2: float, ridge: float, weight: float = 1.0) -> torch.Tensor:
    posterior = spectral_posterior(transform(projection, ridge), gram_root(projection.spectrum, weight))
    return posterior_root(
        posterior, torch.tensor([sigma2], dtype=torch.float64), torch.tensor([tau2], dtype=torch.float64)
    )


def Z(x: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    return torch.einsum("nr,crs->ncs", x, V)


def close(got: torch.Tensor, want: np.ndarray, prior: float) -> None:
    """Equal to rounding of the dense route, which subtracts two matrices of the prior's size."""
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-7, atol=1e-10 * prior + 1e-300)


@given(features())
def test_kernel_form_woodbury_form_and_cholesky_form_agree(case) -> None:
    """Theorems 3.1 and 3.2."""
    phi_r, phi_m, test_r, _, sigma2, tau2, ridge = case
    S_kernel = dense.rich_covariance(phi_r, phi_m, test_r, sigma2, tau2, ridge)
    S = covariance(Z(torch.from_numpy(test_r), root(project(phi_r, phi_m), sigma2, tau2, ridge)))[0]

    A = dense.projection(phi_r, phi_m, ridge)
    BtB = np.eye(phi_r.shape[1]) + A.T @ A
    # the dense route solves with kxx + σ²I: its rounding grows with that matrix's condition
    amplification = 1 + 1e-4 * tau2 * np.linalg.norm(phi_r @ BtB @ phi_r.T, 2) / sigma2
    prior = np.abs(test_r @ BtB @ test_r.T).max() * tau2 * amplification
    S_woodbury = test_r @ np.linalg.solve(phi_r.T @ phi_r / sigma2 + np.linalg.inv(BtB) / tau2, test_r.T)
    L = np.linalg.cholesky(BtB)
    inner = L.T @ phi_r.T @ phi_r @ L / sigma2 + np.eye(len(L)) / tau2
    S_cholesky = test_r @ L @ np.linalg.solve(inner, L.T @ test_r.T)
    close(S, S_kernel, prior)
    close(S, S_woodbury, prior * np.linalg.cond(BtB))  # it inverts BᵀB
    close(S, S_cholesky, prior)


@given(features())
def test_L_is_a_factor_of_the_prior(case) -> None:
    phi_r, phi_m, *_, ridge = case
    projection = project(phi_r, phi_m)
    L = transform(projection, ridge)[0]
    A = dense.projection(phi_r, phi_m, ridge)
    BtB = np.eye(phi_r.shape[1]) + A.T @ A
    np.testing.assert_allclose((L @ L.mT).numpy(), BtB, rtol=1e-8, atol=1e-9 * np.abs(BtB).max())
    np.testing.assert_allclose(projection.AtA(ridge)[0].numpy(), A.T @ A, rtol=1e-8, atol=1e-9 * np.abs(BtB).max())


@given(features())
def test_rich_is_never_below_plain(case) -> None:
    """Theorem 3.3, at equal gram, noise and prior: the difference is positive semi-definite."""
    phi_r, phi_m, test_r, _, sigma2, tau2, ridge = case
    rich = project(phi_r, phi_m)
    plain = project(phi_r, phi_m[:, :0])
    x = torch.from_numpy(test_r)
    S_rich, S_plain = (
        covariance(Z(x, root(rich, sigma2, tau2, ridge))),
        covariance(Z(x, root(plain, sigma2, tau2, ridge))),
    )
    smallest = torch.linalg.eigvalsh(S_rich - S_plain).min().item()
    assert smallest >= -1e-10 * S_rich.abs().max().item()


@given(features())
def test_without_other_parameters_it_is_the_plain_posterior(case) -> None:
    phi_r, phi_m, test_r, _, sigma2, tau2, ridge = case
    S = covariance(Z(torch.from_numpy(test_r), root(project(phi_r, phi_m[:, :0]), sigma2, tau2, ridge)))[0]
    close(S, dense.plain_covariance(phi_r, test_r, sigma2, tau2), tau2 * np.abs(test_r @ test_r.T).max())


@given(features())
def test_exact_recovery_at_low_rank(case) -> None:
    """If Φ^m = Φ^r A* the rich posterior is the full NTK-GP, training and test points alike."""
    phi_r, phi_m, test_r, _, sigma2, _, _ = case
    A_star = np.random.default_rng(0).normal(size=(phi_r.shape[1], phi_m.shape[1]))
    if np.linalg.matrix_rank(phi_r, tol=1e-6 * np.abs(phi_r).max()) < phi_r.shape[1]:
        return  # the lemma needs full column rank
    S = covariance(Z(torch.from_numpy(test_r), root(project(phi_r, phi_r @ A_star), sigma2, 1.0, 0.0)))[0]
    want = dense.ntk_covariance(phi_r, phi_r @ A_star, test_r, test_r @ A_star, sigma2)
    close(S, want, np.abs(test_r @ test_r.T).max() + np.abs(test_r @ A_star @ A_star.T @ test_r.T).max())


@given(features())
def test_residual_is_attained(case) -> None:
    """‖Φ^p − Φ^B‖ = ‖(I − P_r) Φ^m‖: least squares leaves exactly what the span cannot hold (Frobenius here)."""
    phi_r, phi_m, *_ = case
    projection = project(phi_r, phi_m)
    explained = projection.H[0].diagonal().sum().item()  # ‖P_r Φ^m‖²
    P = phi_r @ np.linalg.pinv(phi_r, rcond=1e-7)
    outside = np.linalg.norm(phi_m - P @ phi_m) ** 2
    np.testing.assert_allclose(projection.trace_m.item() - explained, outside, rtol=1e-7, atol=1e-8)


@given(features())
def test_posterior_stability(case) -> None:
    """‖S^ntk − S^B‖ is bounded by the residuals of training and test features (appendix)."""
    phi_r, phi_m, test_r, test_m, sigma2, _, _ = case
    S_B = covariance(Z(torch.from_numpy(test_r), root(project(phi_r, phi_m), sigma2, 1.0, 0.0)))[0].numpy()
    S_ntk = dense.ntk_covariance(phi_r, phi_m, test_r, test_m, sigma2)
    A = dense.projection(phi_r, phi_m, 0.0)
    norm = lambda matrix: np.linalg.norm(matrix, 2)  # noqa: E731
    p, p_test = np.hstack([phi_m, phi_r]), np.hstack([test_m, test_r])
    b, b_test = np.hstack([phi_r @ A.T, phi_r]), np.hstack([test_r @ A.T, test_r])
    bound = (norm(p_test) + norm(b_test)) * norm(p_test - b_test)
    bound += norm(p_test) * norm(b_test) / sigma2 * (norm(p) + norm(b)) * norm(p - b)
    assert norm(S_ntk - S_B) <= bound * (1 + 1e-9) + 1e-8 * norm(p_test) ** 2


@given(features(), st.floats(0.1, 10))
def test_more_data_of_the_same_kind_never_raises_variance(case, factor) -> None:
    """With L fixed: the variance falls as the weight of the rows grows, and as the noise falls."""
    phi_r, phi_m, test_r, _, sigma2, tau2, ridge = case
    projection, x = project(phi_r, phi_m), torch.from_numpy(test_r)
    once = variance(Z(x, root(projection, sigma2, tau2, ridge)))
    more = variance(Z(x, root(projection, sigma2, tau2, ridge, weight=1 + factor)))
    quieter = variance(Z(x, root(projection, sigma2 / (1 + factor), tau2, ridge)))
    assert bool((more <= once * (1 + 1e-9)).all())
    torch.testing.assert_close(more, quieter, rtol=1e-7, atol=0)


@given(features())
def test_variance_is_the_diagonal_and_never_negative_in_float32(case) -> None:
    phi_r, phi_m, test_r, _, sigma2, tau2, ridge = case
    V, x = root(project(phi_r, phi_m), sigma2, tau2, ridge), torch.from_numpy(test_r)
    torch.testing.assert_close(variance(Z(x, V))[:, 0], covariance(Z(x, V))[0].diagonal())
    assert bool((variance(Z(x.float(), V.float())) >= 0).all())


@given(features(), st.sampled_from([1.0, 2.5]))
def test_in_the_basis_of_the_features_it_is_the_same_posterior(case, weight: float) -> None:
    """W diag(d) Wᵀ and λ, also with nothing kept."""
    phi_r, phi_m, _, _, sigma2, tau2, ridge = case
    for rows in (phi_r, 0 * phi_r):
        projection = project(rows, phi_m)
        spectrum, C = projection.spectrum, kept_factor(projection, ridge)
        want = spectral_posterior(transform(projection, ridge), gram_root(spectrum, weight))
        found = posterior_in_basis(spectrum, C, weight)
        scale = float(want.eigenvalues.max())
        torch.testing.assert_close(found.eigenvalues, want.eigenvalues, rtol=1e-7, atol=1e-13 * scale)
        assert bool((found.eigenvalues.diff() <= 1e-13 * scale).all())
        scales = torch.tensor([sigma2], dtype=torch.float64), torch.tensor([tau2], dtype=torch.float64)
        V, V_found = (posterior_root(posterior, *scales) for posterior in (want, found))
        size = float((V @ V.mT).abs().max())
        torch.testing.assert_close(V_found @ V_found.mT, V @ V.mT, rtol=1e-7, atol=1e-9 * size)


@given(features())
def test_effective_dimension_is_between_zero_and_the_rank(case) -> None:
    phi_r, phi_m, _, _, sigma2, tau2, ridge = case
    projection = project(phi_r, phi_m)
    posterior = spectral_posterior(transform(projection, ridge), gram_root(projection.spectrum, 1.0))
    gamma = effective_dimension(
        posterior, torch.tensor([sigma2], dtype=torch.float64), torch.tensor([tau2], dtype=torch.float64)
    ).item()
    assert 0 <= gamma <= min(len(phi_r), projection.spectrum.num_alive) + 1e-9
