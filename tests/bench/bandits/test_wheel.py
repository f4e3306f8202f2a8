"""The wheel: rewards by hand, the closed form of uniform play, and runs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbll_bench.bandits import agents
from richbll_bench.bandits.playing import play
from richbll_bench.bandits.wheel import NUM_ARMS, SAFE_ARM, Wheel
from richbll_bench.errors import BanditError, UnknownAgentError

DELTAS = st.floats(0.05, 0.995)


@given(DELTAS, st.floats(0, 1), st.floats(0, 2 * math.pi))
def test_rewards_by_hand(delta: float, radius: float, angle: float) -> None:
    x = torch.tensor([[radius * math.cos(angle), radius * math.sin(angle)]])
    a, b = (float(value) for value in x[0])
    want = [1.0, 1.0, 1.0, 1.0, 1.2]
    if a * a + b * b > delta * delta:
        want[{(True, True): 0, (True, False): 1, (False, True): 2, (False, False): 3}[a >= 0, b >= 0]] = 50.0
    np.testing.assert_allclose(Wheel(delta).expected_rewards(x)[0].numpy(), want)


@given(DELTAS)
def test_uniform_and_safe_play_cost_what_the_closed_form_says(delta: float) -> None:
    wheel = Wheel(delta)
    assert wheel.uniform_regret == pytest.approx(0.16 * delta**2 + 39.16 * (1 - delta**2))
    x = wheel.contexts(4000, torch.Generator().manual_seed(0))
    share = float(wheel.is_outside(x).double().mean())
    assert share == pytest.approx(1 - delta**2, abs=4 * math.sqrt(0.25 / 4000))
    costs = torch.stack([wheel.regrets(x, torch.full((4000,), arm)) for arm in range(NUM_ARMS)])
    assert float(costs.mean()) == pytest.approx(0.16 * (1 - share) + 39.16 * share)
    assert float(costs[SAFE_ARM].mean()) == pytest.approx(48.8 * share)


def test_the_level_of_always_playing_safe() -> None:
    levels = [100 * Wheel(d).safe_regret / Wheel(d).uniform_regret for d in (0.5, 0.7, 0.9, 0.95, 0.99)]
    np.testing.assert_allclose(levels, [124.5, 124.1, 122.5, 120.1, 103.7], atol=0.06)


def test_contexts_are_uniform_on_the_disk_and_rewards_are_noisy() -> None:
    wheel, generator = Wheel(0.5), torch.Generator().manual_seed(0)
    x = wheel.contexts(20_000, generator)
    radius = x.square().sum(dim=1).sqrt()
    assert float(radius.max()) <= 1 + 1e-6
    for r in (0.3, 0.6, 0.9):
        assert float((radius < r).double().mean()) == pytest.approx(r * r, abs=0.012)
    actions = torch.full((20_000,), SAFE_ARM)
    rewards = wheel.rewards(x, actions, torch.randn(20_000, generator=generator))
    assert float(rewards.mean()) == pytest.approx(1.2, abs=3e-4)
    assert float(rewards.std()) == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_radius_that_is_none(delta: float) -> None:
    with pytest.raises(BanditError, match="must lie between 0 and 1"):
        Wheel(delta)


def test_contexts_of_another_shape() -> None:
    with pytest.raises(BanditError, match=r"\(n, 2\), not \(3, 4\)"):
        Wheel(0.5).expected_rewards(torch.zeros(3, 4))


# ---------------------------------------------------------------------- runs


class Fixed:
    """Always the same arm."""

    def __init__(self, arm: int) -> None:
        from richbll_bench.bandits.agent import Seconds

        self.arm, self.seconds, self.seen = arm, Seconds(), 0

    def phase_length(self, num_seen: int) -> int:
        assert num_seen == self.seen
        return 7

    def act(self, contexts: torch.Tensor) -> torch.Tensor:
        return torch.full((len(contexts),), self.arm)

    def observe(self, contexts: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> None:
        self.seen += len(rewards)

    best = act


def test_always_safe_is_locked_in_and_uniform_is_not() -> None:
    wheel = Wheel(0.5)
    run = play(Fixed(SAFE_ARM), wheel, 500, seed=3)
    metrics = run.metrics([100], [50, 500])
    outside = float(run.is_outside.double().mean())
    want = 100 * 48.8 * outside / (0.16 * (1 - outside) + 39.16 * outside)
    assert metrics["regret"] == metrics["curve_500"] == pytest.approx(want)
    assert metrics["regret_inside"] == 0
    assert metrics["regret_outside"] == metrics["regret"]
    assert metrics["misses"] == int(run.is_outside.sum())
    assert metrics["locked_in"] == 1
    assert metrics["simple_regret"] == pytest.approx(124.5, rel=0.05)
    uniform = play(agents.load("uniform").make(0, 2, NUM_ARMS), wheel, 20_000, seed=3)
    assert uniform.percent() == pytest.approx(100, abs=2)
    assert not uniform.is_locked_in


def test_all_agents_of_a_seed_see_the_same_contexts() -> None:
    one, other = (play(Fixed(arm), Wheel(0.9), 300, seed=1) for arm in (0, 4))
    assert torch.equal(one.is_outside, other.is_outside)
    assert not torch.equal(one.is_outside, play(Fixed(0), Wheel(0.9), 300, seed=2).is_outside)
    assert one.percent(where=one.is_outside) + one.percent(where=~one.is_outside) == pytest.approx(one.percent())
    assert one.percent(100) == play(Fixed(0), Wheel(0.9), 100, seed=1).percent()


@pytest.mark.parametrize("name", agents.names())
def test_every_agent_plays_and_is_reproducible(name: str) -> None:
    kind = agents.load(name)
    assert kind.title
    assert kind.source
    first, again = (play(kind.make(5, 2, NUM_ARMS), Wheel(0.5), 55, seed=5) for _ in range(2))
    assert torch.equal(first.regrets, again.regrets)
    assert first.simple_regret == again.simple_regret


def test_an_agent_that_there_is_not() -> None:
    with pytest.raises(UnknownAgentError, match=r"no agent 'rich_bl'.*Did you mean rich_bll"):
        agents.load("rich_bl")
