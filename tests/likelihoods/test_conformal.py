"""Conformal calibration: exact finite-sample coverage, from below and from above."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbll.errors import DataError, NonFiniteError, OptionError, ShapeError
from richbll.likelihoods.conformal import (
    Calibration,
    calibrate_intervals,
    calibrate_sets,
    class_scores,
    conformal_quantile,
    interval_half_width,
    prediction_set,
)


def in_band(hits: float, trials: int, probability: float) -> bool:
    """Within four binomial standard errors."""
    return abs(hits / trials - probability) < 4 * math.sqrt(probability * (1 - probability) / trials)


def probabilities(rng, n: int, num_classes: int) -> torch.Tensor:
    return torch.from_numpy(rng.dirichlet(np.full(num_classes, 0.7), size=n))


def labels_from(rng, probs: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy((probs.numpy().cumsum(1) > rng.random((len(probs), 1))).argmax(1))


@given(st.integers(1, 60), st.integers(1, 99))
def test_the_quantile_is_the_right_order_statistic(n, percent) -> None:
    """In integers: the smallest k with k / (n + 1) ≥ level."""
    k = next(k for k in range(n + 2) if 100 * k >= percent * (n + 1))
    got = conformal_quantile(torch.arange(1.0, n + 1), percent / 100).item()
    assert got == (k if k <= n else math.inf)


def test_rounding_does_not_move_the_quantile() -> None:
    """100 · 0.07 is 7.000000000000001 in floating point."""
    assert conformal_quantile(torch.arange(1.0, 100.0), 0.07).item() == 7


@pytest.mark.parametrize(("n", "level"), [(10, 0.9), (19, 0.9), (37, 0.5)])
def test_intervals_cover_exactly_as_often_as_the_theorem_says(n, level) -> None:
    """Heavy tails, a wrong mean and a wrong std: coverage is ⌈(n+1) level⌉ / (n+1) all the same, not more, not less.

    For n = 10 and level 0.9 forgetting the + 1 gives 0.82 instead of 0.91.
    """
    trials = 4000
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(trials):
        scale = torch.from_numpy(rng.uniform(0.1, 3, size=(n + 1, 1)))
        y = scale * torch.from_numpy(rng.standard_t(2, size=(n + 1, 1)))
        mean, std = 0.3 * scale, 0.2 + scale
        calibration = calibrate_intervals(y[:n], mean[:n], std[:n])
        half = interval_half_width(calibration, std[n:], level)
        hits += bool((y[n:] - mean[n:]).abs() <= half)
    exact = math.ceil((n + 1) * level - 1e-9) / (n + 1)
    assert level <= exact <= level + 1 / (n + 1)
    assert in_band(hits, trials, exact)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_cover_exactly_as_often_as_the_theorem_says(score) -> None:
    """Overconfident probabilities. A likeliest class whose score is too high is added on top: it counts apart."""
    trials, n, level = 3000, 24, 0.9
    rng = np.random.default_rng(1)
    hits = added = 0
    for _ in range(trials):
        true = probabilities(rng, n + 1, 6)
        labels = labels_from(rng, true)
        probs = true**1.5 / (true**1.5).sum(-1, keepdim=True)
        calibration = calibrate_sets(probs[:n], labels[:n], score)
        inside = prediction_set(calibration, probs[n:], level)
        empty = bool(class_scores(score, probs[n:]).min() > calibration.quantile(level))
        hits += bool(inside[0, labels[n]]) and not empty
        added += empty
        assert bool(inside.any())
    assert in_band(hits, trials, 23 / 25)
    assert added < 0.01 * trials


def test_each_output_has_its_own_quantile() -> None:
    y = torch.randn(99, 2, dtype=torch.float64) * torch.tensor([1.0, 10.0])
    calibration = calibrate_intervals(y, torch.zeros_like(y), torch.ones_like(y))
    half = interval_half_width(calibration, torch.ones(3, 2), 0.9)
    assert half.shape == (3, 2)
    assert half.dtype == torch.float32
    for k in range(2):
        assert half[0, k].item() == pytest.approx(y[:, k].abs().sort().values[89].item(), rel=1e-6)


def test_the_score_is_relative_to_the_std() -> None:
    """Where the std says nothing useful or everything, the half-width follows it."""
    std = torch.rand(200, 1, dtype=torch.float64) + 0.1
    calibration = calibrate_intervals(2 * std, torch.zeros_like(std), std)
    torch.testing.assert_close(interval_half_width(calibration, std, 0.9), 2 * std)


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_too_few_points_give_everything(score) -> None:
    rng = np.random.default_rng(0)
    probs = probabilities(rng, 8, 5)
    calibration = calibrate_sets(probs, labels_from(rng, probs), score)
    assert calibration.quantile(0.9).item() == math.inf
    assert bool(prediction_set(calibration, probs, 0.9).all())
    assert not bool(prediction_set(calibration, probs, 0.5).all())
    interval = calibrate_intervals(torch.randn(8, 1), torch.zeros(8, 1), torch.ones(8, 1))
    assert bool(interval_half_width(interval, torch.ones(2, 1), 0.9).isinf().all())
    assert bool(interval_half_width(interval, torch.ones(2, 1), 0.88).isfinite().all())


@given(st.integers(0, 10**6), st.sampled_from(["lac", "aps"]), st.integers(1, 40))
def test_sets_hold_the_likeliest_class_grow_with_the_level_and_follow_the_order(seed, score, n) -> None:
    rng = np.random.default_rng(seed)
    probs = probabilities(rng, n, 5)
    probs = (8 * probs).round().clamp_min(1) / (8 * probs).round().clamp_min(1).sum(-1, keepdim=True)  # with ties
    calibration = calibrate_sets(probs, labels_from(rng, probs), score)
    small, large = prediction_set(calibration, probs, 0.3), prediction_set(calibration, probs, 0.8)
    assert bool(small.gather(1, probs.argmax(1, keepdim=True)).all())
    assert bool((small <= large).all())
    order = torch.from_numpy(rng.permutation(5))
    assert torch.equal(prediction_set(calibration, probs[:, order], 0.8), large[:, order])
    # a class that is in takes all likelier ones with it
    assert bool((probs.masked_fill(~large, 2).amin(1, keepdim=True) >= probs.masked_fill(large, 0)).all())


@given(st.integers(0, 10**6))
def test_aps_is_the_mass_of_the_classes_at_least_as_likely(seed) -> None:
    rng = np.random.default_rng(seed)
    counts = torch.from_numpy(rng.integers(0, 5, size=(4, 6))).double()
    counts[:, 0] += 1
    p = counts / counts.sum(-1, keepdim=True)
    want = (p[:, None, :] * (p[:, None, :] >= p[:, :, None])).sum(-1)
    torch.testing.assert_close(class_scores("aps", p), want)
    torch.testing.assert_close(class_scores("lac", p), 1 - p)


def test_scores_are_kept_sorted_and_in_double_precision() -> None:
    calibration = calibrate_sets(torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([0, 0]))
    assert calibration.sorted_scores.dtype == torch.float64
    assert calibration.sorted_scores.tolist() == pytest.approx([0.1, 0.8])


def test_inputs_are_checked_at_the_door() -> None:
    y, probs, labels = torch.zeros(3, 1), torch.full((3, 2), 0.5), torch.tensor([0, 1, 1])
    with pytest.raises(OptionError, match=r"level=1\.0"):
        conformal_quantile(torch.arange(3.0), 1.0)
    with pytest.raises(OptionError, match="score='raps'"):
        calibrate_sets(probs, labels, "raps")
    with pytest.raises(ShapeError, match=r"\(3, 1\), \(3, 1\) and \(3,\)"):
        calibrate_intervals(y, y, torch.ones(3))
    with pytest.raises(DataError, match="no calibration points"):
        calibrate_intervals(y[:0], y[:0], y[:0])
    with pytest.raises(DataError, match="no calibration points"):
        calibrate_sets(probs[:0], labels[:0])
    with pytest.raises(DataError, match="the smallest is 0"):
        calibrate_intervals(y, y, y)
    with pytest.raises(NonFiniteError, match="1 of 3 rows"):
        calibrate_intervals(torch.tensor([[0.0], [torch.nan], [0.0]]), y, y + 1)
    with pytest.raises(NonFiniteError, match="probabilities"):
        calibrate_sets(probs * torch.nan, labels)
    with pytest.raises(DataError, match="not logits"):
        calibrate_sets(probs * 4 - 1, labels)
    with pytest.raises(DataError, match=r"from 0 to 1.*from 0 to 2"):
        calibrate_sets(probs, torch.tensor([0, 1, 2]))
    with pytest.raises(ShapeError, match=r"\(2,\), probabilities \(3, 2\)"):
        calibrate_sets(probs, labels[:2])
    interval, lac = Calibration("interval", torch.ones(3, 1)), Calibration("lac", torch.ones(3))
    with pytest.raises(OptionError, match="'interval'"):
        prediction_set(interval, probs, 0.5)
    with pytest.raises(OptionError, match="'lac'"):
        interval_half_width(lac, y + 1, 0.5)
    with pytest.raises(ShapeError, match="1 output"):
        interval_half_width(interval, torch.ones(3, 2), 0.5)
