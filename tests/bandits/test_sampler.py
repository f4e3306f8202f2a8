"""Thompson sampling with anyone's network: what it draws, when it learns, what it refuses."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from richbll import RichBLL
from richbll.bandits import LocalNoise, Replay, RollingNoise, ThompsonSampler, fit_network, with_action
from richbll.errors import DataError, NonFiniteError, NotFittedError, OptionError, ShapeError
from richbll.rng import child_generator

QUICK = partial(fit_network, steps=5)


def by_output(**options: object) -> ThompsonSampler:
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3))
    return ThompsonSampler(model, 3, train=QUICK, **options)


def by_code(**options: object) -> ThompsonSampler:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    return ThompsonSampler(model, 3, encode=with_action, train=QUICK, **options)


def seen(sampler: ThompsonSampler, count: int = 60) -> ThompsonSampler:
    x = torch.randn(count, 2)
    return sampler.observe(x, torch.arange(count) % 3, x[:, 0] + torch.arange(count) % 3)


def test_draws_with_a_code_have_the_library_s_moments() -> None:
    sampler = seen(by_code(prior_variance=4.0, subsample=None))
    x = torch.tensor([[0.3, -0.2]])
    draws = sampler.draw(x.repeat(8000, 1)).double()
    replay = sampler.replay
    noise = sampler.noise.variance
    model = sampler._rewards.model
    uq = RichBLL(model, noise_variance=noise, prior_variance=4.0, ridge=1e-2)
    uq.fit(with_action(replay.contexts, replay.actions, 3))
    joint = uq.joint(with_action(x.repeat(3, 1), torch.arange(3), 3))
    want = joint.covariance[0].double()
    torch.testing.assert_close(sampler.expected(x)[0].double(), joint.mean[:, 0].double(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(draws.mT.cov(), want, rtol=0.1, atol=0.06 * float(want.max()))
    torch.testing.assert_close(draws.mean(0), joint.mean[:, 0].double(), rtol=0, atol=0.06 * float(want.max()) ** 0.5)


def test_every_output_has_the_posterior_of_its_own_rows() -> None:
    sampler = seen(by_output(subsample=None))
    x = torch.tensor([[0.3, -0.2]])
    variances = sampler.draw(x.repeat(6000, 1)).double().var(dim=0)
    for action in range(3):
        rows = sampler.replay.contexts[sampler.replay.actions == action]
        uq = RichBLL(sampler._rewards.model, noise_variance=sampler.noise.variance, ridge=1e-2).fit(rows)
        want = float(uq.predict(x).epistemic_variance[0, action])
        assert float(variances[action]) == pytest.approx(want, rel=0.12)


@pytest.mark.parametrize("rows", [20, 1000])
@pytest.mark.parametrize("noise", [RollingNoise(), LocalNoise(prior=1.0)])
def test_the_projection_may_be_from_some_rows_and_the_posterior_from_all(rows: int, noise) -> None:
    """Against literal algebra: A by least squares on some rows, the data term of all of them, each over its noise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    sampler = ThompsonSampler(
        model, 3, encode=with_action, train=QUICK, noise=noise, subsample=None, projection_rows=rows, prior_variance=4.0
    )
    x = torch.randn(60, 2, dtype=torch.float64)
    sampler.observe(x, torch.arange(60) % 3, (x[:, 0] + torch.arange(60) % 3).float())
    inputs = with_action(sampler.replay.contexts, sampler.replay.actions, 3)
    J = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(model(row[None]).sum(), model.parameters())])
            for row in inputs
        ]
    )
    phi_m, phi_r = J[:, :-7], J[:, -7:]
    some = torch.randperm(60, generator=child_generator(0, "projection", 60))[:rows]
    A = torch.linalg.solve(phi_r[some].mT @ phi_r[some] + 1e-2 * torch.eye(7), phi_r[some].mT @ phi_m[some])
    prior = 4.0 * (torch.eye(7, dtype=torch.float64) + A @ A.mT)
    (uq,) = sampler._posterior
    sigma2 = uq.predict(inputs).noise_variance.double().expand(60, 1)
    assert bool((sigma2 != sigma2[0]).any()) == isinstance(noise, LocalNoise)
    covariance = torch.linalg.inv(torch.linalg.inv(prior) + phi_r.mT @ (phi_r / sigma2))
    want = ((phi_r @ covariance) * phi_r).sum(dim=1)
    torch.testing.assert_close(uq.predict(inputs).epistemic_variance[:, 0].double(), want, rtol=1e-5, atol=0)


def test_a_projection_from_some_rows_is_for_all_rows() -> None:
    with pytest.raises(OptionError, match="Give subsample=None, or leave projection_rows out"):
        by_code(projection_rows=100)
    with pytest.raises(OptionError, match="projection_rows=0"):
        by_code(subsample=None, projection_rows=0)


@pytest.mark.parametrize("make", [by_output, by_code])
def test_every_action_first_and_then_as_often_as_asked(make) -> None:
    sampler = make(first_pulls=2, every=10, growth=0.0)
    x = torch.randn(4, 2)
    assert sampler.act(x).tolist() == [0, 1, 2, 0]
    sampler.observe(x, sampler.act(x), torch.zeros(4))
    with pytest.raises(NotFittedError, match="act and observe first"):
        sampler.draw(x)
    assert sampler.act(x)[:2].tolist() == [1, 2]
    sampler.observe(x, torch.tensor([1, 2, 0, 0]), torch.ones(4))  # the first pulls are done: it learns
    learned = [sampler._learned]
    for _ in range(5):
        sampler.observe(x, sampler.act(x), torch.randn(4))
        learned.append(sampler._learned)
    assert learned == [8, 8, 8, 20, 20, 20]


@pytest.mark.parametrize("is_coded", [True, False])
def test_many_actions_one_context_at_a_time(is_coded: bool) -> None:
    """It learns before every action had its first pulls, and goes on with these."""
    model = nn.Sequential(nn.Linear(9 if is_coded else 2, 6), nn.Tanh(), nn.Linear(6, 1 if is_coded else 7))
    sampler = ThompsonSampler(model, 7, encode=with_action if is_coded else None, train=QUICK)
    for _ in range(30):
        x = torch.randn(1, 2)
        actions = sampler.act(x)
        sampler.observe(x, actions, actions.float())
    assert torch.bincount(sampler.replay.actions, minlength=7).min() >= 3
    assert sampler.draw(torch.zeros(0, 2)).shape == (0, 7)


def test_the_first_errors_are_of_predictions_made_before_training() -> None:
    """A network that fits its rows exactly would else begin without any noise."""
    x = torch.randn(60, 2)
    rewards = 5 * torch.randn(60)
    for make in (by_output, by_code):
        sampler = make(every=60)
        with torch.no_grad():
            want = (rewards - sampler._predict(x, torch.arange(60) % 3)).square().mean()
        sampler.observe(x, torch.arange(60) % 3, rewards)
        assert sampler.noise.variance == pytest.approx(float(want), rel=1e-5)


def test_it_finds_the_best_actions() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 2))
    sampler = ThompsonSampler(model, 2, train=partial(fit_network, steps=60, learning_rate=2e-2), every=40)
    for _ in range(6):
        x = 2 * torch.rand(40, 1) - 1
        actions = sampler.act(x)
        sampler.observe(x, actions, x[:, 0] * (2 * actions - 1) + 0.05 * torch.randn(40))
    assert sampler.act(torch.tensor([[-0.8], [0.8]])).tolist() == [0, 1]


def test_contexts_of_any_shape_and_inputs_of_any_form() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2))
    sampler = ThompsonSampler(model, 2, train=QUICK)
    images = torch.randn(30, 1, 6, 6)
    sampler.observe(images, torch.arange(30) % 2, torch.randn(30))
    assert sampler.act(images).shape == (30,)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)

        def forward(self, x, code):
            return self.last(torch.tanh(self.first(torch.cat([x.flatten(1)[:, :2], code], dim=1))))

    def encode(x, actions, count):
        return x, nn.functional.one_hot(actions, count).float()

    def by_name(x, actions, count):
        return dict(zip(("x", "code"), encode(x, actions, count), strict=True))

    for form in (encode, by_name):
        for noise in (RollingNoise(), LocalNoise()):
            sampler = ThompsonSampler(Two(), 2, encode=form, train=QUICK, noise=noise)
            sampler.observe(images, torch.arange(30) % 2, torch.randn(30))
            assert sampler.expected(images).shape == (30, 2)


def test_draws_are_reproducible_and_new_each_time() -> None:
    torch.manual_seed(0)
    one = seen(by_code(seed=7))
    x = torch.randn(5, 2)
    first, second = one.draw(x), one.draw(x)
    assert not torch.equal(first, second)
    one._num_acts = 0
    assert torch.equal(one.draw(x), first)


def test_observation_noise_widens_draws() -> None:
    sampler = seen(by_code())
    x = torch.zeros(4000, 2)
    narrow = sampler.draw(x).var(dim=0)
    sampler._observation_noise = True
    torch.testing.assert_close(sampler.draw(x).var(dim=0), narrow + sampler.noise.variance, rtol=0.12, atol=0.0)


def test_a_restart_goes_back_to_the_first_weights() -> None:
    starts = []

    def train(model, predict, contexts, actions, rewards) -> None:
        starts.append(model[0].weight[0, 0].item())
        with torch.no_grad():
            model[0].weight += 1

    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3))
    at_first = model[0].weight[0, 0].item()
    sampler = ThompsonSampler(model, 3, train=train, restart=2.0, every=30, growth=0.0)
    for _ in range(4):
        seen(sampler, 30)
    assert starts == pytest.approx([at_first, at_first, at_first + 1, at_first])


def test_training_is_in_training_mode_and_flags_come_back() -> None:
    modes = []
    model = nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.5), nn.Linear(6, 3)).eval()
    sampler = ThompsonSampler(model, 3, train=lambda model, *_: modes.append(model.training))
    seen(sampler)
    assert modes == [True]
    assert not model.training


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.floats(0, 5))
def test_rolling_noise(errors: list[float], prior: float) -> None:
    noise = RollingNoise(window=7, prior=prior, floor=0.01)
    noise.add(torch.tensor(errors, dtype=torch.float64))
    recent = [e * e for e in errors[-7:]]
    assert noise.variance == pytest.approx(max(sum(recent) / len(recent), 2 * prior / len(errors), 0.01))


def local_noise(phi: torch.Tensor, residuals: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """exp(φβ), not above the largest square, at other features: by the normal equations."""
    squares = residuals.square().clamp_min(1e-3)
    G = phi.T @ phi
    beta = torch.linalg.inv(G + 1e-3 * G.diag().mean() * torch.eye(len(G))) @ phi.T @ (squares.log() + 1.27)
    return torch.minimum((at @ beta).exp(), squares.max())


@pytest.mark.parametrize("make", [by_output, by_code])
def test_draws_with_local_noise_have_the_literal_moments(make) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(3)
        noise = LocalNoise(prior=3.0, floor=1e-3)
        sampler = seen(make(noise=noise, enrich=False, prior_variance=4.0, subsample=None, every=60), 90)
        replay, model = sampler.replay, sampler._rewards.model
        x = torch.tensor([[0.3, -0.2]])
        draws = sampler.draw(x.repeat(20_000, 1)).var(dim=0)
        noisy = sampler._rewards.noise(sampler._posterior, x)
        for action in range(3):
            rows = replay.actions >= 0 if make is by_code else replay.actions == action
            seen_x, at = replay.contexts[rows], x
            if make is by_code:
                seen_x, at = with_action(seen_x, replay.actions, 3), with_action(x, torch.tensor([action]), 3)
            with torch.no_grad():
                phi, phi_at = (torch.cat([model[:-1](z), torch.ones(len(z), 1)], dim=1) for z in (seen_x, at))
                f = model(seen_x)[:, 0 if make is by_code else action]
            residuals = replay.rewards[rows] - f
            sigma2 = local_noise(phi, residuals, phi) + 2 * 3.0 / 90
            covariance = torch.linalg.inv(phi.T @ (phi / sigma2[:, None]) + torch.eye(phi.shape[1]) / 4)
            assert float(draws[action]) == pytest.approx(float(phi_at @ covariance @ phi_at.T), rel=0.05)
            want = float(local_noise(phi, residuals, phi_at)) + 2 * 3.0 / 90
            assert float(noisy[0, action]) == pytest.approx(want, rel=1e-6)
    finally:
        torch.set_default_dtype(torch.float32)


def test_local_noise_is_large_where_rewards_scatter() -> None:
    torch.manual_seed(0)
    sampler = by_code(noise=LocalNoise(), every=400)
    x, actions = torch.randn(400, 2), torch.arange(400) % 3
    sampler.observe(x, actions, (1 + 9.0 * (actions == 2)) * torch.randn(400))
    found = sampler._rewards.noise(sampler._posterior, torch.zeros(1, 2))[0]
    assert float(found[2]) > 10 * float(found[:2].max())
    sampler._observation_noise = True
    spread = sampler.draw(torch.zeros(4000, 2)).var(dim=0)
    assert float(spread[2]) > 10 * float(spread[:2].max())


def test_what_is_refused() -> None:
    model = nn.Linear(2, 3)
    with pytest.raises(OptionError, match="floor=0"):
        LocalNoise(floor=0)
    with pytest.raises(OptionError, match=r"noise=0\.1: must be a RollingNoise"):
        ThompsonSampler(model, 3, noise=0.1)
    with pytest.raises(OptionError, match="num_actions=1"):
        ThompsonSampler(model, 1)
    with pytest.raises(OptionError, match=r"restart=0\.5.*above 1"):
        ThompsonSampler(model, 3, restart=0.5)
    with pytest.raises(OptionError, match="noise=RollingNoise"):
        ThompsonSampler(model, 3, noise_variance=1.0)
    with pytest.raises(OptionError, match="floor=0"):
        RollingNoise(floor=0)
    with pytest.raises(ShapeError, match=r"returned \(9, 3\) for 9 contexts; with 2 actions"):
        ThompsonSampler(model, 2).observe(torch.randn(9, 2), torch.arange(9) % 2, torch.randn(9))
    with pytest.raises(ShapeError, match="one reward each"):
        ThompsonSampler(nn.Linear(4, 3), 2, encode=with_action).observe(
            torch.randn(9, 2), torch.arange(9) % 2, torch.randn(9)
        )


def test_rows_that_are_refused_leave_nothing_behind() -> None:
    replay = Replay(2)
    x = torch.randn(3, 2)
    with pytest.raises(DataError, match="Nothing was observed"):
        _ = replay.contexts
    replay.add(x[:0], torch.tensor([], dtype=torch.long), torch.zeros(0))
    replay.add(x, torch.tensor([0, 1, 0]), torch.zeros(3))
    with pytest.raises(ShapeError, match=r"3 contexts need actions and rewards of shape \(3,\)"):
        replay.add(x, torch.tensor([0, 1]), torch.zeros(3))
    with pytest.raises(ShapeError, match=r"shape \(4,\) each, but those before had \(2,\)"):
        replay.add(torch.randn(3, 4), torch.tensor([0, 1, 0]), torch.zeros(3))
    with pytest.raises(DataError, match="from 0 to 1"):
        replay.add(x, torch.tensor([0, 1, 2]), torch.zeros(3))
    with pytest.raises(NonFiniteError, match="rewards of observe"):
        replay.add(x, torch.tensor([0, 1, 1]), torch.tensor([0.0, torch.nan, 1.0]))
    assert len(replay) == 3
    for _ in range(4):
        replay.add(x, torch.tensor([0, 1, 1]), torch.ones(3))
    assert replay.rewards.tolist() == [0.0] * 3 + [1.0] * 12
    assert torch.equal(replay.contexts[-3:], x)
