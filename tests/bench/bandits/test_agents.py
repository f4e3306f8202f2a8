"""What agents draw from, against slow truths; noise; schedules."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbll_bench.bandits import agents
from richbll_bench.bandits.conjugate import Conjugate, NoisePrior
from richbll_bench.bandits.last_layer import LastLayer, LastLayerRule
from richbll_bench.bandits.network import with_every_action
from richbll_bench.bandits.noise import Noise, NoiseRule
from richbll_bench.bandits.posterior import root_beside_identity
from richbll_bench.bandits.training import PAPER, Schedule
from richbll_bench.errors import BanditError
from richbll_bench.ntk_gp import fit_ntk_gp


@pytest.mark.parametrize("diagonal", [False, True])
def test_conjugate_draws_have_the_moments_of_the_posterior(diagonal: bool) -> None:
    rng = np.random.default_rng(0)
    phi, arms = rng.normal(size=(60, 3)), rng.integers(2, size=60)
    y = phi @ np.array([1.0, -2.0, 0.5]) + arms + 0.3 * rng.normal(size=60)
    prior = NoisePrior(6.0, 6.0, 0.25)
    posterior = Conjugate(2, 3, prior, diagonal)
    for rows in (slice(0, 17), slice(17, 60)):
        posterior.add(phi[rows], arms[rows], y[rows])
    draws = posterior.draw(40_000, rng)
    for arm in range(2):
        X, t = phi[arms == arm], y[arms == arm]
        P = 0.25 * np.eye(3) + X.T @ X
        mean = np.linalg.solve(P, X.T @ t)
        a, b = 6 + len(t) / 2, 6 + (t @ t - mean @ P @ mean) / 2
        cov = b / (a - 1) * (np.diag(1 / np.diag(P)) if diagonal else np.linalg.inv(P))
        np.testing.assert_allclose(posterior.means()[arm], mean, rtol=1e-10)
        np.testing.assert_allclose(draws[:, arm].mean(0), mean, atol=0.01)
        np.testing.assert_allclose(np.cov(draws[:, arm].T), cov, atol=0.03 * np.abs(cov).max())


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.floats(1e-4, 1))
def test_noise_rules(errors: list[float], floor: float) -> None:
    given_errors, arms = torch.tensor(errors, dtype=torch.float64), torch.arange(len(errors)) % 3
    squares = given_errors.square()

    def found(kind: str, **options: float) -> torch.Tensor:
        noise = Noise(NoiseRule(kind, floor=floor, window=10, **options), 4)
        noise.add(given_errors[:3], arms[:3])
        noise.add(given_errors[3:], arms[3:])
        return noise.variances()

    rolling = max(float(squares[-10:].mean()), floor)
    assert found("rolling").tolist() == pytest.approx([rolling] * 4, rel=1e-5)
    per_arm = found("per_arm")
    assert float(per_arm[3]) == pytest.approx(rolling, rel=1e-5)  # never played: what is known of all
    recent = squares[-10:][arms[-10:] == arms[-1]]
    assert float(per_arm[arms[-1]]) == pytest.approx(max(float(recent.mean()), floor), rel=1e-5)
    want = max((7 + float(squares.sum()) / 2) / (2 + len(errors) / 2), floor)
    assert float(found("inverse_gamma", shape=2.0, scale=7.0)[0]) == pytest.approx(want)
    want = max(7 / (2 + len(errors) / 2), floor)
    assert float(found("local", shape=2.0, scale=7.0)[0]) == pytest.approx(want)


def test_what_there_is_not() -> None:
    with pytest.raises(BanditError, match="rolling, inverse_gamma, per_arm, local; not 'none'"):
        NoiseRule("none")
    with pytest.raises(BanditError, match="by function or by arm; not by 'all'"):
        LastLayerRule(draws="all")


def agent(**options: object) -> LastLayer:
    """After 140 rows of a smooth problem."""
    fast = Schedule(restart_steps=200, steps=2, batch_size=32)
    made = LastLayer(0, 2, 3, LastLayerRule(**({"schedule": fast, "projection_rows": 30} | options)))
    x = torch.randn(140, 2, generator=torch.Generator().manual_seed(1))
    for start, stop in ((0, 9), (9, 140)):
        actions = made.act(x[start:stop])
        made.observe(x[start:stop], actions, x[start:stop, 0] + actions)
    return made


def moments(made: LastLayer, count: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.tensor([[0.3, -0.4]]).repeat(count, 1)
    draws = made.draw(with_every_action(x, 3)).view(-1, 3)
    return draws.mean(0), draws.mT.cov()


def changed(made: LastLayer, **options: object) -> LastLayer:
    """The same rows and the same network under another rule."""
    made.rule = replace(LastLayerRule(schedule=made.schedule, projection_rows=30), **options)
    made._prior_variance = made.rule.prior_variance or 1.0
    made.rebuild()
    return made


def test_draws_have_the_posterior_s_moments() -> None:
    made = agent()
    phi = made.learner.network.features(with_every_action(torch.tensor([[0.3, -0.4]]), 3)).double()
    Z = phi @ made._root
    want, mean = Z @ Z.mT, phi @ made.learner.network.last_weights.double()
    found, cov = moments(made)
    torch.testing.assert_close(cov, want, rtol=0.1, atol=0.05 * float(want.max()))
    torch.testing.assert_close(found, mean, rtol=0, atol=4 * float(want.max() / 4000) ** 0.5)
    made.rule = replace(made.rule, draws="arm")
    _, by_arm = moments(made)
    torch.testing.assert_close(by_arm.diagonal(), want.diagonal(), rtol=0.1, atol=0.0)
    assert float((by_arm - by_arm.diagonal().diag()).abs().max()) < 0.1 * float(want.max())


@pytest.mark.parametrize("noise", [NoiseRule("rolling"), NoiseRule("local", scale=1e-3)])
def test_draws_with_observation_noise(noise: NoiseRule) -> None:
    made = agent(noise=noise, draws="arm")
    made.buffer.rewards[made.buffer.arms == 2] += 5 * torch.randn(int((made.buffer.arms == 2).sum()))
    made.rebuild()
    phi = made.learner.network.features(with_every_action(torch.tensor([[0.3, -0.4]]), 3)).double()
    want = (phi @ made._root).square().sum(1) + made.variance(phi, torch.arange(3))
    made.rule = replace(made.rule, observation_noise=True)
    _, noisy = moments(made)
    torch.testing.assert_close(noisy.diagonal(), want, rtol=0.15, atol=0.0)


def test_options_change_what_they_say() -> None:
    made = agent()

    def spread(**options: object) -> float:
        return float(moments(changed(made, **options))[1].trace())

    base = spread()
    assert spread(prior_variance=1e-4) < 0.1 * base < base < spread(prior_variance=1e4)
    assert spread(prior_variance=0.01, enrich=False) < spread(prior_variance=0.01)
    assert spread(prior_variance=0.01, enrich=False, feature_scale=0.1) < spread(prior_variance=0.01, enrich=False)
    assert spread(prior_variance=0.01, ridge=1e3) < spread(prior_variance=0.01)
    variance = float(made.buffer.rewards.var())
    root = changed(made, prior_variance=2.0, standardise=True, enrich=False)._root
    torch.testing.assert_close(root, changed(made, prior_variance=2.0 * variance, enrich=False)._root)


def test_a_posterior_of_some_rows_stands_for_all() -> None:
    made, phi_of = agent(), lambda rows: made.learner.network.features(made.buffer.inputs[rows]).double()
    for asked, count in ((None, 140), (120, 120), (3, 101)):  # never below r = 101
        state = made.generator.get_state()
        root = changed(made, enrich=False, prior_variance=2.0, posterior_rows=asked)._root
        made.generator.set_state(state)
        rows = torch.randperm(140, generator=made.generator)[:count]
        precision = torch.eye(101, dtype=torch.float64) / 2
        precision += 140 / count * phi_of(rows).mT @ phi_of(rows) / made._noise.variances()[0]
        torch.testing.assert_close(root @ root.mT, torch.linalg.inv(precision), rtol=1e-6, atol=1e-9)


def test_local_noise_is_large_where_residuals_are() -> None:
    made = agent(noise=NoiseRule("local", scale=1e-3))
    noisy = made.buffer.arms == 2
    made.buffer.rewards[noisy] += 5 * torch.randn(int(noisy.sum()), generator=torch.Generator().manual_seed(2))
    made.rebuild()
    phi = made.learner.network.features(made.buffer.inputs).double()
    found = made.variance(phi, made.buffer.arms)
    assert float(found[noisy].median()) > 20 * float(found[~noisy].median())


def test_schedules() -> None:
    assert [Schedule().phase_length(n, 5) for n in (0, 15, 5000)] == [15, 20, 50]
    assert PAPER.phase_length(50_000, 5) == 20
    first = agent(schedule=Schedule(restart=None, steps=3, batch_size=8))
    assert first.learner.num_steps == 6
    assert agent().learner.num_steps == 200 + 200  # a new start at 9 rows and one at 140


def test_neural_linear_draws_around_the_regression_of_its_features() -> None:
    made = agents.load("neural_linear").make(0, 2, 3)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(3))
    for start, stop in ((0, 9), (9, 60)):
        actions = made.act(x[start:stop])
        made.observe(x[start:stop], actions, x[start:stop, 0] + actions)
    inputs = with_every_action(x[:1].repeat(3000, 1), 3)
    draws = made.draw(inputs).view(-1, 3)
    spread = draws.std(dim=0) / 3000**0.5
    assert bool(((draws.mean(0) - made.outputs(inputs[:3])).abs() < 5 * spread).all())


def test_the_prior_variance_by_evidence() -> None:
    """MacKay's step from τ² = 1: w'w / γ, with γ = r − tr (I + G)⁻¹ of the data term G."""
    made = changed(agent(), prior_variance=None, enrich=False)
    network = made.learner.network
    phi, w = network.features(made.buffer.inputs).double(), network.last_weights.double()
    G = phi.mT @ phi / made._noise.variances()[0]
    gamma = 101 - torch.linalg.inv(torch.eye(101) + G).trace()
    assert made._prior_variance == pytest.approx(float(w @ w / gamma), rel=1e-6)


@pytest.mark.parametrize("most_rows", [256, 20])
def test_the_gaussian_process_of_the_gradients_against_the_dense_truth(most_rows: int, monkeypatch) -> None:
    monkeypatch.setattr("richbll_bench.bandits.agents.ntk_gp._MOST_ROWS", most_rows)
    made = agents.load("ntk_gp").make(0, 2, 3)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(3))
    for start, stop in ((0, 9), (9, 40)):
        actions = made.act(x[start:stop])
        made.observe(x[start:stop], actions, x[start:stop, 0] + actions)
    module, kept = made.learner.network.as_module(), made._kept[0].x
    assert len(kept) == min(most_rows, 40)
    noise = float(made._noise.variances()[0]) * len(kept) / 40  # so that these rows count as much as all
    gp = fit_ntk_gp(module, kept, noise_variance=noise)
    inputs = with_every_action(x[:1].repeat(4000, 1), 3)
    found = made.draw(inputs).view(-1, 3).var(dim=0)
    torch.testing.assert_close(found, gp.variance(inputs[:3]), rtol=0.12, atol=1e-3)


def test_a_root_of_what_rounding_has_made_indefinite() -> None:
    Q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    values = torch.tensor([-50.0, 0.0, 1.0, 10.0, 1e4, 1e8], dtype=torch.float64)
    L = root_beside_identity((Q * values) @ Q.mT)
    want = torch.eye(6, dtype=torch.float64) + (Q * values.clamp_min(0)) @ Q.mT
    torch.testing.assert_close(L @ L.mT, want, rtol=1e-9, atol=1e-6)
    fine = (Q * values.clamp_min(1)) @ Q.mT
    torch.testing.assert_close(
        root_beside_identity(fine), torch.linalg.cholesky(torch.eye(6, dtype=torch.float64) + fine)
    )
