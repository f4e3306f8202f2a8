"""The bounds hold as often as they promise, are not empty where their premises hold, and name the premise that fails.

Features are uniform on the unit sphere of R^r, so K = 1 and E[φφᵀ] = I/r are known; for r = 1 they are 0 or ±1, and
λ_min = ½.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from richbll.core import bounds
from richbll.core.bounds import Bound, feature_scale, matrix_bernstein, projection_error, required_subsample
from richbll.errors import OptionError, ShapeError
from tests.reference import dense

DELTA = 0.1
DRAWS = 60


def sphere(rng: np.random.Generator, n: int, r: int) -> np.ndarray:
    if r == 1:
        return rng.choice([-1.0, 0.0, 0.0, 1.0], size=(n, 1))
    x = rng.normal(size=(n, r))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def lambda_min(r: int) -> float:
    return 0.5 if r == 1 else 1 / r


def norm(matrix: np.ndarray) -> float:
    return np.linalg.norm(matrix, 2)


def weight_covariance(phi: np.ndarray, N: int, sigma2: float) -> np.ndarray:
    """(N Σ̂/σ² + I)⁻¹ with Σ̂ the mean over these rows: S of the unit vectors, so its norm is the worst of N' = 1."""
    return np.linalg.inv(N / len(phi) * phi.T @ phi / sigma2 + np.eye(phi.shape[1]))


def subsampling_errors(r: int, k: int, N: int, sigma2: float, draws: int = DRAWS) -> np.ndarray:
    """‖S^{B,k} − S^B‖₂ for the worst unit test point, on fresh data each time."""
    rng, errors = np.random.default_rng([r, k]), []
    for _ in range(draws):
        phi = sphere(rng, N, r)  # iid, so its first k rows are a uniform subsample
        errors.append(norm(weight_covariance(phi[:k], N, sigma2) - weight_covariance(phi, N, sigma2)))
    return np.array(errors)


def projection_errors(m: int, r: int, N: int, draws: int = DRAWS) -> np.ndarray:
    """‖Â − A‖₂ for φ^m = A φ^r + b (φ_1)²: the second part is even, so A solves the population problem. K = 1."""
    rng, errors = np.random.default_rng([m, r]), []
    A, b = rng.normal(size=(m, r)), rng.normal(size=m)
    A, b = A / (2 * norm(A)), b / (2 * np.linalg.norm(b))
    for _ in range(draws):
        phi = sphere(rng, N, r)
        errors.append(norm(dense.projection(phi, phi @ A.T + np.outer(phi[:, 0] ** 2, b), 0.0) - A))
    return np.array(errors)


def assert_covers(bound: Bound, errors: np.ndarray, factor: float) -> None:
    """At most a share δ is above the bound, and more than a share δ is above bound / factor: not an empty promise."""
    assert bound.holds
    assert np.isfinite(bound.value)
    assert (errors > bound.value).mean() <= DELTA
    assert (errors > bound.value / factor).mean() > DELTA, f"loose by more than {factor}: {bound}, {errors.max():.3g}"


# --- the matrix Bernstein lemma


def test_bernstein_covers_and_half_of_it_does_not() -> None:
    n, rng = 400, np.random.default_rng(0)
    means = np.abs(2 * rng.binomial(n, 0.5, size=4000) / n - 1)  # Z_i = ±1
    assert_covers(matrix_bernstein(n, 1.0, 1, 1, DELTA), means, factor=2)


@pytest.mark.parametrize(("m", "r"), [(1, 3), (3, 2), (5, 5)])
def test_bernstein_covers_matrices(m: int, r: int) -> None:
    n, rng = 200, np.random.default_rng(1)
    R = 2.5
    Z = R * np.einsum("dni,dnj->dnij", rng.choice([-1, 1], (200, n, m)), rng.choice([-1, 1], (200, n, r)))
    means = np.linalg.norm((Z / math.sqrt(m * r)).mean(axis=1), ord=2, axis=(1, 2))
    assert_covers(matrix_bernstein(n, R, m, r, DELTA), means, factor=4)


@given(st.floats(0.01, 0.5), st.integers(1, 50), st.integers(1, 50))
def test_bernstein_never_promises_less_than_R_where_its_premise_fails(delta: float, m: int, r: int) -> None:
    """The premise is τ ≤ R: at its edge the bound is R itself, which is true anyway."""
    edge = 8 / 3 * math.log((m + r) / delta)
    assert matrix_bernstein(math.ceil(edge), 3.0, m, r, delta).value <= 3.0
    below = matrix_bernstein(math.ceil(edge) - 1, 3.0, m, r, delta)
    assert (below.value, below.holds) == (math.inf, False)


def test_population_deviation_covers_both_at_once() -> None:
    k, N, r, rng = 500, 2000, 3, np.random.default_rng(2)
    errors = []
    for _ in range(200):
        phi = sphere(rng, N, r)
        means = (phi[:k].T @ phi[:k] / k, phi.T @ phi / N)
        errors.append(max(norm(mean - np.eye(r) / r) for mean in means))
    assert_covers(bounds.population_deviation(k, r, 1.0, DELTA), np.array(errors), factor=20)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_radius_in_the_population_lemma_is_twice_too_large(seed: int, r: int) -> None:
    """The proof adds ‖φφᵀ‖ and ‖Σ‖ to 2K². Both matrices are positive, so their difference is at most K²."""
    phi = np.random.default_rng(seed).uniform(-1, 1, size=(20, r))
    K = np.linalg.norm(phi, axis=1).max()
    assert max(norm(np.outer(row, row) - phi.T @ phi / 20) for row in phi) <= K**2 * (1 + 1e-12)


# --- Theorem 3.4


@pytest.mark.parametrize(("m", "r"), [(1, 1), (6, 2), (2, 3), (5, 4)])
def test_projection_error_is_covered(m: int, r: int) -> None:
    N = int(required_subsample(r, 1.0, lambda_min(r), DELTA, margin=4))
    bound = projection_error(N, m, r, 1.0, lambda_min(r), DELTA)
    errors = projection_errors(m, r, N)
    assert_covers(bound, errors, factor=400)
    assert bound.value > 1 / lambda_min(r)  # K²/λ_min ≥ ‖A‖: at the edge of its premise the theorem says nothing yet
    assert_covers(projection_error(N, m, r, 1.0, lambda_min(r), DELTA, residual=0.5), errors, factor=20)


def test_projection_is_exact_without_residual() -> None:
    """φ^m = Aφ^r gives Â = A from any rows; only the bound with the residual knows."""
    phi, A = sphere(np.random.default_rng(7), 1000, 3), np.random.default_rng(8).normal(size=(5, 3))
    assert norm(dense.projection(phi, phi @ A.T, 0.0) - A) < 1e-12
    assert projection_error(10**4, 5, 3, 1.0, 1 / 3, DELTA, residual=0.0).value == 0
    assert projection_error(10**4, 5, 3, 1.0, 1 / 3, DELTA).value > 1


def test_projection_error_falls_as_one_over_root_N() -> None:
    errors = [np.median(projection_errors(4, 2, N)) * math.sqrt(N) for N in (1000, 4000, 16000)]
    assert max(errors) / min(errors) < 1.3
    values = [projection_error(N, 4, 2, 1.0, 0.5, DELTA).value * math.sqrt(N) for N in (1000, 4000, 16000)]
    np.testing.assert_allclose(values, values[0])


@given(st.integers(1, 30), st.integers(1, 30), st.floats(1, 3), st.floats(0.01, 1))
def test_projection_constant_is_the_sum_of_the_proof(m: int, r: int, K: float, lam: float) -> None:
    """‖Ĉ − C‖ ‖Σ̂⁻¹‖ + ‖C‖ ‖Σ̂⁻¹ − Σ⁻¹‖, each by Bernstein at δ/2. The paper's K' covers it only when m ≥ r."""
    N = 10**9
    C_error, Sigma_error = (matrix_bernstein(N, 2 * K**2, rows, r, DELTA / 2).value for rows in (m, r))
    total = C_error * 2 / lam + K**2 * Sigma_error * 2 / lam**2
    K_prime = math.sqrt(8 / 3) * (1 + K**2 / lam) * 4 * K**2 / lam
    stated = K_prime * math.sqrt(math.log(2 * (m + r) / DELTA) / N)
    bound = projection_error(N, m, r, K, lam, DELTA)
    assume(bound.holds)
    assert bound.value >= total * (1 - 1e-12)
    if m >= r:
        assert bound.value == pytest.approx(stated)
    else:
        assert stated < total  # what the theorem states is less than what its proof adds up to


# --- Theorem 3.5 and the alternative bound


@pytest.mark.parametrize("r", [1, 2, 3, 4])
def test_subsampled_posterior_is_covered(r: int) -> None:
    """At Nλ_min = 2σ², where both bounds are equal and the error is near its largest."""
    k = int(required_subsample(r, 1.0, lambda_min(r), DELTA))
    N = 4 * k
    sigma2 = N * lambda_min(r) / 2
    bound = bounds.subsampled_posterior(k, r, 1.0, lambda_min(r), DELTA)
    alternative = bounds.subsampled_posterior_alternative(k, N, r, 1.0, lambda_min(r), sigma2, DELTA)
    assert alternative.value == pytest.approx(bound.value)
    assert_covers(bound, subsampling_errors(r, k, N, sigma2), factor=70)


def test_subsampling_error_falls_as_one_over_root_k() -> None:
    """N/k and Nλ_min/σ² held fixed."""
    sizes = (1500, 6000, 24000)
    errors = [np.median(subsampling_errors(2, k, 4 * k, float(k), draws=150)) * math.sqrt(k) for k in sizes]
    assert max(errors) / min(errors) < 1.3
    values = [bounds.subsampled_posterior(k, 2, 1.0, 0.5, 0.5).value * math.sqrt(k) for k in sizes[1:]]
    assert values[0] == pytest.approx(values[1])


def test_only_the_alternative_knows_that_data_shrinks_the_error() -> None:
    """σ² = 1 and N = 12,000: the error is 1/N of the prior. Theorem 3.5 does not see it, its alternative does."""
    k, N = 3000, 12000
    errors = subsampling_errors(2, k, N, 1.0)
    assert_covers(bounds.subsampled_posterior_alternative(k, N, 2, 1.0, 0.5, 1.0, DELTA), errors, factor=120)
    assert bounds.subsampled_posterior(k, 2, 1.0, 0.5, DELTA).value > 10_000 * errors.max()


@given(st.integers(1, 60), st.floats(1, 5), st.floats(0.001, 1), st.floats(1e-4, 1e8), st.floats(1, 100))
def test_the_alternative_is_never_larger(r: int, K: float, lam: float, sigma2: float, factor: float) -> None:
    """Its ratio to Theorem 3.5 is 4s/(1+s)² with s = Nλ_min/(2σ²), and its premise a quarter."""
    k = int(required_subsample(r, K, lam, DELTA))
    N = int(factor * k)
    stated = bounds.subsampled_posterior(k, r, K, lam, DELTA, num_test=3)
    other = bounds.subsampled_posterior_alternative(k, N, r, K, lam, sigma2, DELTA, num_test=3)
    s = N * lam / (2 * sigma2)
    assert other.value == pytest.approx(stated.value * 4 * s / (1 + s) ** 2)
    assert other.value <= stated.value * (1 + 1e-12)
    quarter = bounds.subsampled_posterior_alternative(-(-k // 4), N, r, K, lam, sigma2, DELTA)
    assert quarter.holds
    assert not bounds.subsampled_posterior(-(-k // 4), r, K, lam, DELTA).holds


def test_formulas_literally() -> None:
    """Both bounds as the paper prints them, at one point."""
    k, N, r, K, lam, sigma, n_test = 10**6, 3 * 10**6, 3, 1.5, 0.2, 0.7, 5
    root = math.sqrt(8 / (3 * k) * math.log(4 * r / DELTA))
    assert bounds.subsampled_posterior(k, r, K, lam, DELTA, n_test).value == pytest.approx(
        n_test * 2 * K**4 / lam * root
    )
    assert bounds.subsampled_posterior_alternative(k, N, r, K, lam, sigma**2, DELTA, n_test).value == pytest.approx(
        n_test * 4 * K**4 / (sigma / N + lam / (2 * sigma)) ** 2 / N * root
    )


def test_several_test_points_cost_their_number() -> None:
    """‖Φ'‖² ≤ N'K² is attained when all test points are the same."""
    phi = sphere(np.random.default_rng(3), 12000, 2)
    difference = weight_covariance(phi[:3000], 12000, 6000.0) - weight_covariance(phi, 12000, 6000.0)
    values, vectors = np.linalg.eigh(difference)
    test = np.tile(vectors[:, np.abs(values).argmax()], (7, 1))
    assert norm(test @ difference @ test.T) == pytest.approx(7 * norm(difference))
    one, seven = (bounds.subsampled_posterior(3000, 2, 1.0, 0.5, DELTA, n).value for n in (1, 7))
    assert seven == pytest.approx(7 * one)


# --- how many rows


@given(st.integers(1, 100), st.floats(0.5, 5), st.floats(0.001, 1), st.floats(0.001, 0.5))
def test_required_subsample_is_where_the_premise_switches(r: int, K: float, lam: float, delta: float) -> None:
    k = int(required_subsample(r, K, lam, delta))
    assert bounds.subsampled_posterior(k, r, K, lam, delta).holds
    assert not bounds.subsampled_posterior(k - 1, r, K, lam, delta).holds


def test_rows_grow_with_the_square_of_r_and_reach_millions() -> None:
    """K² ≥ tr Σ ≥ r λ_min, so the theorem asks for r² log r rows, not for the O(r) it is said to prove."""
    best = {r: required_subsample(r, math.sqrt(r), 1.0, 0.05) for r in (51, 102)}
    assert 3_600_000 < best[51] < 3_800_000
    assert best[102] / best[51] > 4
    ours = {r: bounds.required_for_relative_error(0.3, r, float(r), 0.05) for r in (51, 102)}
    assert ours[51] < 16_000
    assert ours[102] / ours[51] < 2.5


@given(st.floats(0.01, 5), st.integers(1, 60), st.floats(1, 20), st.floats(0.001, 0.5))
def test_required_for_relative_error_is_the_smallest(rho: float, rank: int, excess: float, delta: float) -> None:
    k = bounds.required_for_relative_error(rho, rank, rank * excess, delta)
    assert bounds.relative_subsample_error(k, rank, rank * excess, delta).value <= rho * (1 + 1e-9)
    assert bounds.relative_subsample_error(k - 1, rank, rank * excess, delta).value > rho * (1 - 1e-9)


# --- the inverse-difference lemma


@given(st.floats(0, 1e6), st.floats(-0.999, 1e3))
def test_inverse_difference(t: float, eps: float) -> None:
    difference = lambda t: abs(1 / (1 + t) - 1 / (1 + (1 + eps) * t))  # noqa: E731
    bound = bounds.inverse_difference(eps).value
    assert difference(t) <= bound + 1e-15
    assert difference(1 / math.sqrt(1 + eps)) == pytest.approx(bound, rel=1e-9, abs=1e-15)  # attained
    if eps >= 0:
        assert bound <= eps / 4 + 1e-15
    elif eps >= 2 - 2 * math.sqrt(2):
        assert bound <= -eps / 2 + 1e-15
    else:
        assert bound > -eps / 2  # the range given in the paper's footnote is the whole range


def test_inverse_difference_constants_cannot_be_smaller() -> None:
    assert bounds.inverse_difference(1e-6).value == pytest.approx(1e-6 / 4, rel=1e-5)
    edge = 2 - 2 * math.sqrt(2)
    assert bounds.inverse_difference(edge).value == pytest.approx(-edge / 2)
    assert bounds.inverse_difference(-1.0) == Bound(math.inf, "ε = -1 > −1", holds=False)


@given(st.floats(1e-6, 0.25))
def test_the_last_steps_of_theorem_3_5_lose_a_factor_of_two(eps: float) -> None:
    """(1−ε)Σ ⪯ both ⪯ (1+ε)Σ: the ratio c is within (1±ε)/(1∓ε), where the difference is near ε/2; the proof says ε."""
    worst = max(
        bounds.inverse_difference(2 * eps / (1 - eps)).value, bounds.inverse_difference(-2 * eps / (1 + eps)).value
    )
    assert worst == pytest.approx(eps / (1 + math.sqrt(1 - eps**2)), rel=1e-6)
    assert worst <= 0.51 * eps


# --- rows chosen from given data


@pytest.mark.parametrize("sigma2", [1e-3, 1.0, 1e4])
def test_relative_error_for_given_data_and_a_fitted_transform(sigma2: float) -> None:
    """L is fitted to the very data that is subsampled; only the choice of rows is random."""
    rng = np.random.default_rng(4)
    N, k, r = 6000, 1200, 3
    phi = np.hstack([np.maximum(rng.normal(size=(N, 2)), 0), np.ones((N, 1))])  # ReLU features and a bias
    A = dense.projection(phi, np.tanh(phi @ rng.normal(size=(r, 8))), 0.0)
    phi_L = phi @ np.linalg.cholesky(np.eye(r) + A.T @ A)
    S = weight_covariance(phi_L, N, sigma2)
    errors = []
    for _ in range(100):
        S_k = weight_covariance(phi_L[rng.permutation(N)[:k]], N, sigma2)
        errors.append(np.abs(np.linalg.eigvals(np.linalg.solve(S, S_k)).real - 1).max())
    scale = feature_scale(torch.from_numpy(phi_L))
    bound = bounds.relative_subsample_error(k, scale.rank, scale.leverage, DELTA)
    assert_covers(bound, np.array(errors), factor=10 if sigma2 < 100 else 60)
    # Theorem 3.5 has nothing to say about these data
    assert not bounds.subsampled_posterior(k, r, scale.K, scale.lambda_min, DELTA).holds


def test_relative_error_on_the_sphere_is_off_by_less_than_four() -> None:
    rng = np.random.default_rng(5)
    N, k, r = 8000, 800, 4
    phi, errors = sphere(rng, N, r), []
    S = weight_covariance(phi, N, 1e-3)
    for _ in range(100):
        S_k = weight_covariance(phi[rng.permutation(N)[:k]], N, 1e-3)
        errors.append(np.abs(np.linalg.eigvals(np.linalg.solve(S, S_k)).real - 1).max())
    scale = feature_scale(torch.from_numpy(phi))
    assert_covers(bounds.relative_subsample_error(k, r, scale.leverage, DELTA), np.array(errors), factor=4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_leverage_does_not_depend_on_the_transform(seed: int, r: int) -> None:
    rng = np.random.default_rng(seed)
    phi, L = rng.normal(size=(40, r)), np.tril(rng.normal(size=(r, r)), -1) + np.diag(rng.uniform(1, 3, r))
    plain, transformed = feature_scale(torch.from_numpy(phi)), feature_scale(torch.from_numpy(phi @ L))
    assert transformed.leverage == pytest.approx(plain.leverage, rel=1e-6)
    Sigma = phi.T @ phi / 40
    assert plain.leverage == pytest.approx(np.einsum("ni,ni->n", phi, np.linalg.solve(Sigma, phi.T).T).max())
    assert plain.lambda_min == pytest.approx(np.linalg.eigvalsh(Sigma)[0])
    assert r <= plain.leverage <= 40 * (1 + 1e-12)
    assert r * plain.lambda_min <= plain.K**2


# --- stability of the posterior


@st.composite
def network_features(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    r, m, N = draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(10, 40))
    phi_r = rng.normal(size=(N + 4, r))
    residual = 10.0 ** draw(st.integers(-4, 1))
    phi_m = phi_r @ rng.normal(size=(r, m)) + residual * rng.normal(size=(N + 4, m))
    return phi_r[:N], phi_m[:N], phi_r[N:], phi_m[N:], 10.0 ** draw(st.integers(-2, 2))


def measured(train_r, train_m, test_r, test_m):
    """(‖Φ^p‖, ‖Φ^B‖) on training and test points, and ε_x, ε_x'."""
    A = dense.projection(train_r, train_m, 0.0)
    p, p_test = np.hstack([train_m, train_r]), np.hstack([test_m, test_r])
    B, B_test = np.hstack([train_r @ A.T, train_r]), np.hstack([test_r @ A.T, test_r])
    return (norm(p), norm(B)), (norm(p_test), norm(B_test)), norm(p - B), norm(p_test - B_test)


@given(network_features())
def test_posterior_stability(case) -> None:
    *features, sigma2 = case
    train_r, train_m, test_r, test_m = features
    train, test, eps_x, eps_test = measured(*features)
    S_ntk = dense.ntk_covariance(train_r, train_m, test_r, test_m, sigma2)
    error = norm(S_ntk - dense.rich_covariance(train_r, train_m, test_r, sigma2))
    stated = bounds.posterior_stability(train, test, eps_x, eps_test, sigma2).value
    ours = bounds.least_squares_stability(test, eps_x, eps_test, sigma2).value
    rounding = 1e-9 * test[0] ** 2 * (1 + train[0] ** 2 / sigma2)
    assert error <= ours + rounding
    assert ours <= stated * (1 + 1e-12)


@pytest.mark.parametrize(
    ("features", "sigma2"),
    [
        # A = 0 and a test point that only the network sees: all of its variance is the error
        (([[1.0], [0.0]], [[0.0], [1e-4]], [[0.0]], [[1.0]]), 1.0),
        # A = 1000 fits the training points but not the test point, and the noise leaves the prior as it is
        (([[1.0], [2.0]], [[1000.0], [2000.0]], [[1.0]], [[1500.0]]), 1e12),
    ],
)
def test_stability_is_attained(features, sigma2) -> None:
    train_r, train_m, test_r, test_m = map(np.array, features)
    train, test, eps_x, eps_test = measured(train_r, train_m, test_r, test_m)
    S_B = dense.rich_covariance(train_r, train_m, test_r, sigma2)
    error = norm(dense.ntk_covariance(train_r, train_m, test_r, test_m, sigma2) - S_B)
    assert bounds.least_squares_stability(test, eps_x, eps_test, sigma2).value == pytest.approx(error, rel=1e-3)
    assert bounds.posterior_stability(train, test, eps_x, eps_test, sigma2).value == pytest.approx(error, rel=1e-3)


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_the_training_term_is_attained(e: float, sigma2: float) -> None:
    """‖M_p⁻¹ − M_B⁻¹‖ = ε_x²/(σ² + ε_x²) for Φ^r = (1, 0), Φ^m = (0, e); the proposition has (‖Φ^p‖ + ‖Φ^B‖) ε_x/σ²."""
    M_p, M_B = np.eye(2) + np.diag([e**2, 1]) / sigma2, np.eye(2) + np.diag([0, 1]) / sigma2
    difference = norm(np.linalg.inv(M_p) - np.linalg.inv(M_B))
    assert bounds.least_squares_stability((1.0, 1.0), e, 0.0, sigma2).value == pytest.approx(difference)
    assert bounds.posterior_stability((max(e, 1), 1.0), (1.0, 1.0), e, 0.0, sigma2).value >= difference


def test_with_enough_data_only_ours_says_something() -> None:
    """The proposition grows with the training features, past the prior variance that is an upper bound anyway."""
    rng = np.random.default_rng(6)
    phi_r = rng.normal(size=(500, 3))
    phi_m = phi_r @ rng.normal(size=(3, 5)) + 1e-3 * rng.normal(size=(500, 5))
    features = (phi_r[:499], phi_m[:499], phi_r[499:], phi_m[499:])
    train, test, eps_x, eps_test = measured(*features)
    assert bounds.posterior_stability(train, test, eps_x, eps_test, 0.01).value > 10 * test[0] ** 2
    assert bounds.least_squares_stability(test, eps_x, eps_test, 0.01).value < 0.1 * test[0] ** 2


def test_stability_is_exact_at_low_rank() -> None:
    """No residual, no error: both bounds are zero."""
    assert bounds.posterior_stability((9.0, 9.0), (1.0, 1.0), 0.0, 0.0, 0.1).value == 0
    assert bounds.least_squares_stability((1.0, 1.0), 0.0, 0.0, 0.1).value == 0


# --- a premise that fails is named


@pytest.mark.parametrize(
    ("bound", "named"),
    [
        (matrix_bernstein(5, 1.0, 2, 2, 0.05), "n = 5 ≥ 12 = (8/3) log((m+r)/δ)"),
        (bounds.population_deviation(5, 2, 1.0, 0.05), "n = 5 ≥ 14 = (8/3) log((m+r)/δ)"),
        (projection_error(10**6, 5, 2, 1.0, 0.0, 0.05), "λ_min = 0 > 0"),
        (projection_error(20, 10**9, 1, 1.0, 1.0, 0.05), "N = 20 ≥ 65 = (8/3) log(2(m+r)/δ)"),
        (projection_error(100, 5, 2, 1.0, 0.5, 0.05), "N = 100 ≥ 867 = (8/3) log(4r/δ) (4K²/λ_min)²"),
        (bounds.subsampled_posterior(10**6, 2, 1.0, -1e-18, 0.05), "λ_min = -1e-18 > 0"),
        (bounds.subsampled_posterior(10**6, 2, 1.0, math.nan, 0.05), "λ_min = nan > 0"),
        (
            bounds.subsampled_posterior(10_000, 51, math.sqrt(51), 1.0, 0.05),
            "k = 10,000 ≥ 3,690,553 = (8/3) log(4r/δ) (8K²/λ_min)²",
        ),
        (bounds.subsampled_posterior_alternative(2000, 1000, 2, 1.0, 0.5, 1.0, 0.05), "N = 1,000 ≥ 2,000 = k"),
        (bounds.subsampled_posterior_alternative(2000, 4000, 2, 1.0, 0.5, 0.0, 0.05), "σ² = 0 > 0"),
        (
            bounds.subsampled_posterior_alternative(500, 1000, 2, 1.0, 0.5, 1.0, 0.05),
            "k = 500 ≥ 867 = (8/3) log(4r/δ) (4K²/λ_min)²",
        ),
        (bounds.relative_subsample_error(100, 51, 51.0, 0.05), "ε = 4.37 < 1"),
        (bounds.posterior_stability((1.0, 1.0), (1.0, 1.0), 0.1, 0.1, 0.0), "σ² = 0 > 0"),
        (bounds.least_squares_stability((1.0, 1.0), 0.1, 0.1, 0.1, ridge=0.5), "A is plain least squares (ridge 0.5)"),
    ],
)
def test_a_failing_premise_is_inf_and_named(bound: Bound, named: str) -> None:
    assert bound == Bound(math.inf, named, holds=False)
    assert str(bound) == f"no bound, as this fails: {named}"


def test_a_dead_feature_leaves_only_the_relative_bound() -> None:
    phi = torch.cat([torch.rand(500, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(500, 1)], dim=1)
    scale = feature_scale(phi)
    assert (scale.rank, scale.lambda_min) == (3, 0.0)
    assert required_subsample(4, scale.K, scale.lambda_min, DELTA) == math.inf
    assert not bounds.subsampled_posterior(10**9, 4, scale.K, scale.lambda_min, DELTA).holds
    assert bounds.relative_subsample_error(300, scale.rank, scale.leverage, DELTA).holds


def test_all_features_dead() -> None:
    scale = feature_scale(torch.zeros(5, 2))
    assert (scale.K, scale.lambda_min, scale.rank, scale.leverage) == (0, 0, 0, 0)
    assert bounds.relative_subsample_error(3, scale.rank, scale.leverage, DELTA).value == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_delta_is_a_probability(delta: float) -> None:
    with pytest.raises(OptionError, match=r"must lie in \(0, 1\)"):
        matrix_bernstein(100, 1.0, 1, 1, delta)


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0), (1, 2, 3)])
def test_features_are_a_matrix(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"give \(n, r\)"):
        feature_scale(torch.zeros(shape))
