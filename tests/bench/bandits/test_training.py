"""Schedules: hard rows keep the objective, averages lag behind, better networks take over."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from richbll_bench.bandits.buffer import Buffer
from richbll_bench.bandits.training import PAPER, Schedule, plain_learner


@settings(max_examples=10)
@given(st.floats(0, 0.9), st.integers(0, 1000))
def test_hard_rows_leave_the_mean_square_as_it_is(hard: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randn(50, generator=generator) ** 3
    schedule = Schedule(hard=hard, batch_size=200, refresh=7)
    drawn = list(schedule.batches(100, 50, lambda: errors, generator))
    assert len(drawn) == 100
    estimates = torch.stack([(weights * errors[rows] ** 2).mean() for rows, weights in drawn])
    spread = float(estimates.std()) / 10
    assert abs(float(estimates.mean()) - float((errors**2).mean())) < 5 * spread
    if hard > 0.2:
        largest = int(errors.abs().argmax())
        share = torch.stack([rows for rows, _ in drawn]).eq(largest).double().mean()
        assert float(share) > 1.5 / 50  # an even draw's is 1 / 50


def buffer_of(count: int) -> Buffer:
    buffer, generator = Buffer(2, 3), torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, generator=generator)
    buffer.add(x, torch.arange(count) % 3, x[:, 0])
    return buffer


def test_the_average_follows_the_weights() -> None:
    small = {"batch_size": 16, "restart": None, "steps": 5}
    calm, quick = (plain_learner(5, 0, Schedule(average=average, **small)) for average in (True, False))
    before = calm.network.theta.clone()
    for _ in range(3):
        calm.learn(buffer_of(40))
        quick.learn(buffer_of(40))
    torch.testing.assert_close(calm._moving.theta, quick.network.theta)
    assert 0 < float((calm.network.theta - before).norm()) < float((quick.network.theta - before).norm())


def test_rates_and_new_starts() -> None:
    schedule = Schedule()
    assert schedule.begins_anew(30, 20)
    assert not schedule.begins_anew(29, 20)
    assert not PAPER.begins_anew(100, 1)
    new = schedule.rates(1000, is_new=True)
    assert len(new) == 1500
    assert new[0] > 100 * new[-1]
    early, late = schedule.rates(1000, is_new=False), schedule.rates(64_000, is_new=False)
    assert (len(early), len(late)) == (50, 160)
    assert late[0] == early[0] / 2  # sixteen times the rows, to the power of a quarter


def test_another_network_takes_over_if_it_fits_better() -> None:
    learner = plain_learner(5, 0, Schedule(batch_size=16))
    learner.learn(buffer_of(40))  # the first one always does
    torch.testing.assert_close(learner.network.theta, learner._moving.theta)
    assert learner.num_steps == 200
    good = learner.network.theta.clone()
    learner.network.theta += 1.0  # spoiled: its successor is better
    learner.learn(buffer_of(60))
    torch.testing.assert_close(learner.network.theta, learner._moving.theta)
    assert learner.num_steps == 400
    kept = plain_learner(5, 0, Schedule(batch_size=16, restart_steps=1))
    kept.learn(buffer_of(40))
    kept.network.theta.copy_(good)
    kept._moving.theta.copy_(good)
    kept.learn(buffer_of(60))  # one step does not make a better one: the old one learns on
    assert kept.num_steps == 1 + 1 + 50
    moved, apart = (float((theta - good).norm()) for theta in (kept.network.theta, kept._new(60).theta))
    assert 0 < moved < 0.5 * apart
