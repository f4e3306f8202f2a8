"""Scales from validation data: against brute force, with the laws they must obey (PEERS, hard test 13)."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from richbll.core.posterior import SpectralPosterior, shrinkage
from richbll.errors import DataError, NonFiniteError, OptionError, RichBLLWarning, ShapeError
from richbll.likelihoods.gaussian import log_density
from richbll.tuning import ratio
from richbll.tuning.validation import tune_by_mse, tune_by_nll


def simulate(seed: int, n: int = 300, c: int = 1, r: int = 6, sigma2: float = 0.3, tau2: float = 2.0, null: int = 1):
    """Errors drawn from N(0, v + σ²) with v of these scales; the last `null` directions have seen no data."""
    rng = np.random.default_rng(seed)
    squares = torch.from_numpy(rng.gamma(0.5, 2.0, size=(n, c, r)))
    eigenvalues = torch.from_numpy(10.0 ** rng.uniform(-2, 1, size=(c, r)))
    eigenvalues[:, r - null :] = 0
    v = (squares * tau2 / (1 + tau2 * eigenvalues / sigma2)).sum(-1)
    return squares, eigenvalues, (v + sigma2) * torch.from_numpy(rng.normal(size=(n, c)) ** 2)


def nll(squares, eigenvalues, errors_sq, sigma2, tau2) -> float:
    """The objective, literally, for one output."""
    v = (squares[:, 0] * (tau2 / (1 + tau2 * eigenvalues[0] / sigma2))).sum(-1).numpy() + sigma2
    return float(np.mean(0.5 * np.log(2 * np.pi * v) + 0.5 * errors_sq[:, 0].numpy() / v))


def tuned(*args, **options):
    """The scales, whatever the search says about its edges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        return tune_by_nll(*args, **options)


@pytest.mark.parametrize("seed", range(4))
def test_it_finds_what_a_dense_grid_and_an_optimiser_find(seed) -> None:
    data = simulate(seed)
    scales = tune_by_nll(*data)
    got = nll(*data, scales.noise_variance.item(), scales.prior_variance.item())
    grid = [(nll(*data, s, t), s, t) for s in np.logspace(-3, 1, 25) for t in np.logspace(-3, 3, 37)]
    start = np.log(min(grid)[1:])
    best = minimize(lambda x: nll(*data, *np.exp(x)), start, method="Nelder-Mead", options={"xatol": 1e-7})
    assert got <= min(grid)[0]
    assert got == pytest.approx(best.fun, abs=1e-7)
    np.testing.assert_allclose([scales.noise_variance, scales.prior_variance], np.exp(best.x)[:, None], rtol=0.01)


@pytest.mark.parametrize("known", ["noise_variance", "prior_variance"])
def test_with_one_scale_given_it_finds_the_best_other_one(known) -> None:
    data = simulate(0)
    scales = tune_by_nll(*data, **{known: 0.7})
    assert getattr(scales, known).item() == 0.7
    pair = [scales.noise_variance.item(), scales.prior_variance.item()]
    other = 1 if known == "noise_variance" else 0
    candidates = []
    for value in pair[other] * np.linspace(0.5, 2, 301):
        pair[other] = value
        candidates.append((nll(*data, *pair), value))
    assert getattr(scales, ["noise_variance", "prior_variance"][other]).item() == pytest.approx(
        min(candidates)[1], 0.01
    )


def test_a_tiny_noise_given_widens_the_search_for_the_prior() -> None:
    squares, eigenvalues, _ = simulate(0, null=6)
    scales = tune_by_nll(squares, eigenvalues, squares.sum(-1), noise_variance=1e-14)
    assert scales.prior_variance.item() == pytest.approx(1, rel=1e-3)


def test_objective_is_the_likelihood_of_the_library() -> None:
    """The objective in the ratio equals log_density with the core's shrinkage, up to its constant."""
    squares, eigenvalues, errors_sq = simulate(1)
    for sigma2, tau2 in [(0.1, 1.0), (2.0, 30.0)]:
        d = shrinkage(
            SpectralPosterior(torch.empty(0), eigenvalues),
            *torch.tensor([[sigma2], [tau2]], dtype=torch.float64),
        )
        variance = (squares * d).sum(-1) + sigma2
        want = -log_density(errors_sq.sqrt(), torch.zeros(1), variance).mean().item()
        rho = torch.tensor([tau2 / sigma2], dtype=torch.float64)
        spread, fit = ratio._means(squares[:, 0], eigenvalues[0], errors_sq[:, 0], rho)
        got = 0.5 * (np.log(2 * np.pi * sigma2) + spread + fit / sigma2)
        assert got.item() == pytest.approx(want, rel=1e-12)


@given(st.integers(0, 10**6), st.integers(-20, 20))
def test_rescaled_outputs_rescale_the_noise_and_leave_the_prior(seed, power) -> None:
    """y → s y multiplies errors², squares and eigenvalues by s²; powers of two are exact in floating point."""
    squares, eigenvalues, errors_sq = simulate(seed, n=40)
    factor = 4.0**power
    once, again = (
        tuned(squares, eigenvalues, errors_sq),
        tuned(factor * squares, factor * eigenvalues, factor * errors_sq),
    )
    torch.testing.assert_close(again.noise_variance, factor * once.noise_variance, rtol=1e-14, atol=0)
    torch.testing.assert_close(again.prior_variance, once.prior_variance, rtol=1e-14, atol=0)


@given(st.integers(0, 10**6), st.floats(-6, 6), st.floats(-6, 6))
def test_units_of_features_and_of_targets_do_not_matter(seed, log_features, log_targets) -> None:
    """Features times a: τ² by 1/a². Errors² and σ² times b with λ/σ² kept: both scales times b."""
    squares, eigenvalues, errors_sq = simulate(seed, n=40)
    a2, b = 10**log_features, 10**log_targets
    once = tuned(squares, eigenvalues, errors_sq)
    again = tuned(a2 * squares, a2 * eigenvalues, b * errors_sq)
    torch.testing.assert_close(again.noise_variance, b * once.noise_variance, rtol=1e-3, atol=0)
    torch.testing.assert_close(again.prior_variance, b / a2 * once.prior_variance, rtol=1e-3, atol=0)


@given(st.integers(0, 10**6))
def test_the_order_of_points_and_directions_does_not_matter(seed) -> None:
    squares, eigenvalues, errors_sq = simulate(seed, n=40)
    points, directions = torch.randperm(40), torch.randperm(6)
    once = tuned(squares, eigenvalues, errors_sq)
    again = tuned(squares[points][..., directions], eigenvalues[:, directions], errors_sq[points])
    torch.testing.assert_close(again.noise_variance, once.noise_variance, rtol=1e-3, atol=0)
    torch.testing.assert_close(again.prior_variance, once.prior_variance, rtol=1e-3, atol=0)


def test_the_answer_does_not_depend_on_the_grid(monkeypatch) -> None:
    data = simulate(2)
    once = tune_by_nll(*data)
    monkeypatch.setattr(ratio, "_LOWEST", -4.317)
    monkeypatch.setattr(ratio, "_PER_DECADE", 5)
    again = tune_by_nll(*data)
    torch.testing.assert_close(again.noise_variance, once.noise_variance, rtol=5e-3, atol=0)
    torch.testing.assert_close(again.prior_variance, once.prior_variance, rtol=5e-3, atol=0)


def test_parts_of_bounded_size_give_the_same(monkeypatch) -> None:
    data = simulate(2)
    once = tune_by_nll(*data)
    monkeypatch.setattr(ratio, "_MOST_ELEMENTS", 1000)
    again = tune_by_nll(*data)
    torch.testing.assert_close(again.prior_variance, once.prior_variance, rtol=1e-3, atol=0)


def test_outputs_are_tuned_by_themselves() -> None:
    squares, eigenvalues, errors_sq = simulate(3, c=3)
    errors_sq[:, 1] *= 5
    together = tune_by_nll(squares, eigenvalues, errors_sq)
    for k in range(3):
        alone = tune_by_nll(squares[:, [k]], eigenvalues[[k]], errors_sq[:, [k]])
        assert together.noise_variance[k] == alone.noise_variance
        assert together.prior_variance[k] == alone.prior_variance


def test_single_precision_is_enough() -> None:
    data = simulate(3)
    once, again = tune_by_nll(*data), tune_by_nll(*(t.float() for t in data))
    assert again.noise_variance.dtype == again.prior_variance.dtype == torch.float64
    torch.testing.assert_close(again.prior_variance, once.prior_variance, rtol=1e-3, atol=0)


def test_the_objective_depends_on_the_variance() -> None:
    """The same errors given to the points in reverse order of variance: a tuner that ignores v cannot tell."""
    squares, eigenvalues, errors_sq = simulate(4, n=1000)
    order = squares[:, 0, -1].argsort()  # the direction without data dominates v
    aligned = errors_sq.sort(dim=0).values[order.argsort()]
    opposed = errors_sq.sort(dim=0, descending=True).values[order.argsort()]
    with_v = tune_by_nll(squares, eigenvalues, aligned)
    with pytest.warns(RichBLLWarning, match="prior_variance"):
        without_v = tune_by_nll(squares, eigenvalues, opposed)
    assert with_v.prior_variance.item() > 1000 * without_v.prior_variance.item()
    assert without_v.noise_variance.item() == pytest.approx(errors_sq.mean().item(), rel=1e-3)
    assert with_v.noise_variance.item() < 0.5 * errors_sq.mean().item()


def test_the_true_scales_are_recovered_within_sampling_error() -> None:
    """Errors of the model itself, 40 times: the mean of log σ̂² and log τ̂² is within 3 standard errors of the truth."""
    found = []
    for seed in range(40):
        scales = tune_by_nll(*simulate(seed, n=1000, sigma2=0.3, tau2=2.0))
        found.append([scales.noise_variance.log().item(), scales.prior_variance.log().item()])
    found = np.array(found)
    error = found.mean(0) - np.log([0.3, 2.0])
    standard = found.std(0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(error) < 3 * standard + 0.01).all(), (error, standard)  # 0.01 ~ 1/n: the estimate's own bias
    assert (standard < 0.05).all()


def test_recovery_on_bayesian_linear_regression() -> None:
    """A linear model with weights from the prior, its posterior mean as f: the data's own σ² and τ² come back.

    Errors at different points share the 40 weights that the data hardly saw: log τ̂² spreads by about √(2/40).
    """
    truth, N, n, r = np.array([0.2, 1.5]), 100, 400, 80
    found = []
    rng = np.random.default_rng(0)
    for _ in range(100):
        train, val, w = rng.normal(size=(N, r)), rng.normal(size=(n, r)), np.sqrt(truth[1]) * rng.normal(size=r)
        train[:, r // 2 :] *= 0.02
        val[: n // 2, r // 2 :] *= 0.02  # half of the points are like the training data: they show the noise
        y, y_val = (x @ w + np.sqrt(truth[0]) * rng.normal(size=len(x)) for x in (train, val))
        eigenvalues, U = np.linalg.eigh(train.T @ train)
        mean = np.linalg.solve(train.T @ train / truth[0] + np.eye(r) / truth[1], train.T @ y / truth[0])
        squares = torch.from_numpy((val @ U) ** 2)[:, None]
        errors_sq = torch.from_numpy((y_val - val @ mean) ** 2)[:, None]
        scales = tune_by_nll(squares, torch.from_numpy(eigenvalues).clamp_min(0)[None], errors_sq)
        found.append([scales.noise_variance.log().item(), scales.prior_variance.log().item()])
    error = np.mean(found, 0) - np.log(truth)
    standard = np.std(found, 0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(error) < 3 * standard + [1 / 200, 1 / 40]).all(), (error, standard)  # the logarithm's own bias
    assert (standard < 0.05).all(), standard


def test_no_variance_in_the_errors_warns_at_the_lower_edge() -> None:
    squares, eigenvalues, _ = simulate(0)
    errors_sq = 1 / (1 + squares.sum(-1))
    with pytest.warns(
        RichBLLWarning, match=r"prior_variance=\S+ \(output 0\): the smallest value searched.*set prior_v"
    ):
        scales = tune_by_nll(squares, eigenvalues, errors_sq)
    assert (scales.prior_variance * squares.sum(-1).max()).item() <= 1.001e-4 * scales.noise_variance.item()


def test_a_prior_without_upper_bound_warns_and_stays_moderate() -> None:
    """All directions saturated, and the errors want still more variance where it is large."""
    squares, eigenvalues, _ = simulate(0, null=0)
    errors_sq = (squares / eigenvalues).sum(-1)
    with pytest.warns(RichBLLWarning, match="prior_variance=.*: the largest value searched.*no upper bound"):
        scales = tune_by_nll(squares, eigenvalues, errors_sq, noise_variance=1e-3)
    with pytest.warns(RichBLLWarning, match="prior_variance"):
        free = tune_by_nll(squares, eigenvalues, 1e-3 * (1 + errors_sq))
    assert np.isfinite(scales.prior_variance.item())
    edge = 1e-3 * 1e12 / squares.sum(-1).max().item()
    assert free.prior_variance.item() < 1e-3 * edge  # the smallest of the equally good


def test_noise_that_vanishes_warns() -> None:
    squares, eigenvalues, _ = simulate(0, null=6)
    with pytest.warns(RichBLLWarning, match=r"noise_variance=.*the smallest value searched.*no lower bound"):
        scales = tune_by_nll(squares, eigenvalues, squares.sum(-1))
    assert scales.prior_variance.item() == pytest.approx(1, rel=0.01)


def test_noise_at_the_edge_with_the_prior_given_warns() -> None:
    squares, eigenvalues, _ = simulate(0, null=6)
    with pytest.warns(RichBLLWarning, match=r"noise_variance=.*the smallest value searched"):
        tune_by_nll(squares, eigenvalues, squares.sum(-1), prior_variance=1.0)


def test_a_single_point_cannot_tell_and_says_so() -> None:
    with pytest.warns(RichBLLWarning, match="prior_variance"):
        scales = tune_by_nll(*(t[:1] if len(t) > 1 else t for t in simulate(0)))
    assert scales.prior_variance.item() > 0


def test_inputs_are_checked_at_the_door() -> None:
    squares, eigenvalues, errors_sq = simulate(0, n=5)
    with pytest.raises(DataError, match="no validation points"):
        tune_by_nll(squares[:0], eigenvalues, errors_sq[:0])
    with pytest.raises(ShapeError, match=r"\(5, 1, 6\), \(1, 6\) and \(4, 1\)"):
        tune_by_nll(squares, eigenvalues, errors_sq[:4])
    for index, what in enumerate(["squares", "eigenvalues", "squared errors"]):
        broken = [squares.clone(), eigenvalues.clone(), errors_sq.clone()]
        broken[index].view(-1)[0] = torch.nan
        with pytest.raises(NonFiniteError, match=f"NaN or Inf in the {what}"):
            tune_by_nll(*broken)
    with pytest.raises(DataError, match="cannot be negative"):
        tune_by_nll(-squares, eigenvalues, errors_sq)
    with pytest.raises(DataError, match="Squared errors cannot be negative"):
        tune_by_nll(squares, eigenvalues, -errors_sq)
    with pytest.raises(DataError, match="validation targets of output 0 exactly"):
        tune_by_nll(squares, eigenvalues, 0 * errors_sq)
    with pytest.raises(DataError, match="All features are zero"):
        tune_by_nll(0 * squares, eigenvalues, errors_sq)
    with pytest.raises(OptionError, match="nothing left to tune"):
        tune_by_nll(squares, eigenvalues, errors_sq, noise_variance=1.0, prior_variance=1.0)
    with pytest.raises(OptionError, match="noise_variance=-1"):
        tune_by_nll(squares, eigenvalues, errors_sq, noise_variance=-1)


def test_mse_is_the_papers() -> None:
    errors_sq = torch.tensor([[1.0, 4.0], [3.0, 0.0]])
    scales = tune_by_mse(errors_sq, torch.tensor([5.0, 6.0]))
    assert scales.noise_variance.tolist() == [2.0, 2.0]
    assert scales.prior_variance.tolist() == [5.0, 6.0]
    with pytest.raises(DataError, match="no validation points"):
        tune_by_mse(errors_sq[:0], 1.0)
    with pytest.raises(NonFiniteError, match="squared errors"):
        tune_by_mse(errors_sq / 0, 1.0)
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        tune_by_mse(errors_sq[:, 0], 1.0)


def test_inputs_are_left_alone() -> None:
    data = simulate(0)
    before = [t.clone() for t in data]
    tune_by_nll(*data)
    assert all(torch.equal(a, b) for a, b in zip(before, data, strict=True))
