"""Tuning and calibration through the estimator: held-out data in, better scales out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import DataError, MemoryBudgetError, OptionError, RichBLLWarning
from tests.cases import make
from tests.reference import dense


@pytest.fixture
def problem():
    """A network that is a little wrong, with noise of known size: data of 400 + 400 + 2000 points."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2)).double()

    def draw(n):
        x = torch.randn(n, 3).double()
        y = model(x).detach() + 0.3 * torch.sin(3 * x[:, :2]) + torch.tensor([0.2, 1.0]) * torch.randn(n, 2).double()
        return x, y

    return model, draw(400), draw(400), draw(2000)


def nll(uq, data) -> torch.Tensor:
    x, y = data
    pred = uq.predict(x)
    normal = torch.distributions.Normal(pred.mean, pred.std)
    return -normal.log_prob(y).mean(0)


@pytest.mark.filterwarnings("ignore:.*edge", "ignore:.*prior_variance")
def test_nll_beats_every_point_of_a_grid_on_the_validation_data(problem) -> None:
    model, train, val, _ = problem
    uq = RichBLL(model, noise_variance=3.0).fit(train).tune(val)
    best = nll(uq, val)
    assert uq.noise_variance[0] < uq.noise_variance[1]  # one noise per output
    tuned = uq.noise_variance, uq.prior_variance
    for sigma2 in (0.3, 0.7, 1.0, 1.5, 3.0):
        for tau2 in (0.1, 0.5, 1.0, 2.0, 10.0):
            uq.noise_variance, uq.prior_variance = sigma2 * tuned[0], tau2 * tuned[1]
            assert bool((nll(uq, val) >= best - 1e-5).all())


@pytest.mark.filterwarnings("ignore:.*prior_variance")
def test_with_a_noise_function_the_prior_alone_is_chosen(problem) -> None:
    model, train, val, _ = problem

    def noise(x):
        return 0.05 + torch.stack([x[:, 0] ** 2, x[:, 1].abs()], dim=1)

    uq = RichBLL(model, noise_variance=noise).fit(train, val=val)
    torch.testing.assert_close(uq.predict(val[0]).noise_variance, noise(val[0]).to(uq.predict(val[0]).mean))
    best, tuned = nll(uq, val).sum(), uq.prior_variance
    for factor in (1e-3, 0.1, 0.7, 1.4, 10, 1e3):
        uq.prior_variance = factor * tuned
        assert float(nll(uq, val).sum()) >= float(best) - 1e-5


def test_features_that_are_zero_say_nothing_about_the_prior() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    nn.init.constant_(model[0].bias, -1e6)
    x, y = torch.randn(30, 3), torch.arange(30) % 3
    uq = RichBLL(model, "classification").fit((x, y))
    with pytest.raises(DataError, match="All features are zero"):
        uq.tune((x, y))
    assert bool((uq.prior_variance == 1).all())


def test_mse_is_the_papers(problem) -> None:
    model, train, val, _ = problem
    uq = RichBLL(model, noise_variance=3.0, prior_variance=2.0).fit(train).tune(val, method="mse")
    want = (model(val[0]).detach() - val[1]).square().mean(0)
    torch.testing.assert_close(uq.noise_variance, want)
    assert uq.prior_variance.tolist() == [2.0, 2.0]


def test_evidence_is_the_dense_one_and_its_maximum(problem) -> None:
    model, train, *_ = problem
    uq = RichBLL(model, noise_variance=0.3, prior_variance=2.0).fit(train)
    jacobians = dense.jacobians(model, "2", (train[0],))
    e = train[1].numpy() - jacobians.f
    for k in range(2):
        phi, A = jacobians.phi_r[k], dense.projection(jacobians.phi_r[k], jacobians.phi_m[k], 0.0)
        BtB = np.eye(21) + A.T @ A
        w = np.append(model[2].weight.detach().numpy()[k], model[2].bias.detach().numpy()[k])
        kernel = 2.0 * phi @ BtB @ phi.T / 0.3 + np.eye(400)
        want = -200 * np.log(2 * np.pi * 0.3) - (e[:, k] ** 2).sum() / 0.6 - w @ np.linalg.solve(BtB, w) / 4.0
        want -= 0.5 * np.linalg.slogdet(kernel)[1]
        assert uq.log_marginal_likelihood()[k].item() == pytest.approx(want, rel=1e-9)
    best = uq.tune(method="evidence").log_marginal_likelihood()
    tuned = uq.noise_variance, uq.prior_variance
    for factor in (0.8, 1.25):
        uq.noise_variance, uq.prior_variance = factor * tuned[0], tuned[1]
        assert bool((uq.log_marginal_likelihood() < best).all())
        uq.noise_variance, uq.prior_variance = tuned[0], factor * tuned[1]
        assert bool((uq.log_marginal_likelihood() < best).all())


@pytest.mark.filterwarnings("ignore:.*edge", "ignore:.*prior_variance")
def test_fit_with_validation_data_tunes(problem) -> None:
    model, train, val, _ = problem
    at_once = RichBLL(model).fit(train, val=val)  # no warning about residuals: they are not used
    with pytest.warns(RichBLLWarning, match="tune"):
        later = RichBLL(model).fit(train)
    later.tune(val)
    assert torch.equal(at_once.noise_variance, later.noise_variance)
    assert torch.equal(at_once.prior_variance, later.prior_variance)


@pytest.mark.filterwarnings("ignore:.*edge", "ignore:.*prior_variance")
def test_validation_data_is_enough_for_the_noise(problem) -> None:
    """Inputs without targets, or a network that reproduces its training targets exactly."""
    model, train, val, _ = problem
    want = RichBLL(model).fit(train, val=val).noise_variance
    torch.testing.assert_close(RichBLL(model).fit(train[0], val=val).noise_variance, want)
    torch.testing.assert_close(RichBLL(model).fit((train[0], model(train[0]).detach()), val=val).noise_variance, want)


def test_a_subsampled_evidence_stands_for_all(problem) -> None:
    model, train, *_ = problem
    whole = RichBLL(model, noise_variance=0.3, ridge=0.1).fit(train).tune(method="evidence").noise_variance
    part = (
        RichBLL(model, noise_variance=0.3, ridge=0.1, subsample=300).fit(train).tune(method="evidence").noise_variance
    )
    torch.testing.assert_close(part, whole, rtol=0.2, atol=0)


def test_misuse(problem) -> None:
    model, train, val, _ = problem
    uq = RichBLL(model, noise_variance=1.0).fit(train)
    with pytest.raises(DataError, match='there is method="evidence"'):
        uq.tune()
    with pytest.raises(OptionError, match="method='magic'"):
        uq.tune(val, method="magic")
    with pytest.raises(DataError, match="has no targets"):
        uq.tune(val[0])
    with pytest.raises(DataError, match="no targets"):
        RichBLL(model, noise_variance=1.0).fit(train[0]).log_marginal_likelihood()
    with pytest.raises(MemoryBudgetError, match="validation points take"):
        RichBLL(model, noise_variance=1.0, memory_budget="50kB").fit(train).tune(val)
    with pytest.raises(OptionError, match="function of x already"):
        RichBLL(model, noise_variance=lambda x: torch.ones(len(x), 2)).fit(train).tune(val, method="mse")
    with pytest.raises(OptionError, match="takes no data"):
        uq.tune(val, method="evidence")
    with pytest.raises(OptionError, match="tune before updating"):
        RichBLL(model, noise_variance=1.0).fit(train).update(val).tune(val)
    with pytest.raises(OptionError, match="score is for classes"):
        uq.conformalize(val, score="lac")
    with pytest.raises(OptionError, match="that of the fit"):
        RichBLL(model, noise_variance=1.0).fit(train).update(val).log_marginal_likelihood()


def too_sure(likelihood: str, count: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network whose logits are far larger than the labels deserve."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    with torch.no_grad():
        model[2].weight.mul_(12)
    x = torch.randn(count, 3).double()
    p = (model(x) / 6).softmax(1) if likelihood == "classification" else (model(x) / 2).sigmoid()
    y = torch.multinomial(p, 1).squeeze(1) if likelihood == "classification" else torch.bernoulli(p)
    return model, x, y.detach()


@pytest.mark.parametrize("likelihood", ["classification", "multilabel"])
def test_classes_are_tuned_by_the_probability_of_labels(likelihood: str) -> None:
    model, x, y = too_sure(likelihood, 600)
    uq = RichBLL(model, likelihood, prior_variance=1e-6).fit((x[:5], y[:5]))  # few points: the prior matters
    score = lambda: -uq.predict(x[200:]).log_prob(y[200:]).mean()  # noqa: E731
    before = score()
    uq.tune((x[200:], y[200:]))
    after, tuned = score(), uq.prior_variance
    assert after < before - 0.01
    for factor in (0.5, 2.0):
        uq.prior_variance = factor * tuned
        assert score() >= after - 1e-3  # the draws of the search are those of predict
    with pytest.raises(OptionError, match="mse"):
        uq.tune((x, y), method="mse")


@pytest.mark.parametrize("likelihood", ["classification", "multilabel"])
def test_classes_with_many_rows_are_tuned_by_one_factor(likelihood: str) -> None:
    model, x, y = too_sure(likelihood, 2000)
    uq = RichBLL(model, likelihood).fit((x[:1500], y[:1500]))
    before, ratio = uq.predict(x[1500:]), uq.noise_variance / uq.prior_variance
    after = uq.tune((x[1500:], y[1500:])).predict(x[1500:])
    assert after.log_prob(y[1500:]).mean() > before.log_prob(y[1500:]).mean() + 0.1
    torch.testing.assert_close(uq.noise_variance / uq.prior_variance, ratio)
    factor = uq.prior_variance[0].item()
    torch.testing.assert_close(after.logit_variance, factor * before.logit_variance)
    best = after.log_prob(y[1500:]).mean()
    for wrong in (0.5, 2.0):
        pred = replace(before, logit_variance=wrong * factor * before.logit_variance)
        assert pred.log_prob(y[1500:]).mean() <= best + 1e-3


# ---------------------------------------------------------------------- conformal


@pytest.mark.parametrize("level", [0.6, 0.9])
def test_conformal_intervals_cover_whatever_the_noise_is(problem, level: float) -> None:
    model, train, cal, test = problem
    uq = RichBLL(model, noise_variance=1e-3).fit(train)  # absurdly sure
    x, y = test

    def covered() -> torch.Tensor:
        lower, upper = uq.predict(x).interval(level)
        return ((y >= lower) & (y <= upper)).double().mean(0)

    assert bool((covered() < level - 0.2).all())
    uq.conformalize(cal)
    # mean level, calibration with 400 points and 2000 test points: standard error √(l(1−l)(1/400 + 1/2000))
    error = 4 * np.sqrt(level * (1 - level) * (1 / 400 + 1 / 2000))
    assert bool(((covered() - level).abs() < error).all())


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_conformal_sets_hold_the_true_class(score: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 5)).double()
    with torch.no_grad():
        model[2].weight.mul_(10)
    x = torch.randn(4000, 3).double()
    y = torch.multinomial((model(x) / 3).softmax(1), 1).squeeze(1)
    uq = RichBLL(model, "classification").fit((x[:500], y[:500])).conformalize((x[500:1500], y[500:1500]), score=score)
    chosen = uq.predict(x[1500:]).prediction_set(0.8)
    assert chosen.shape == (2500, 5)
    assert bool(chosen.any(1).all())
    covered = chosen[torch.arange(2500), y[1500:]].double().mean()
    assert 0.8 - 4 * np.sqrt(0.16 * (1 / 1000 + 1 / 2500)) < covered
    assert chosen.double().sum(1).mean() < 4.5  # and is not everything


def test_tuning_drops_an_earlier_calibration_and_misuse_is_told(problem) -> None:
    model, train, cal, _ = problem
    uq = RichBLL(model, noise_variance=1.0).fit(train).conformalize(cal)
    assert uq.predict(cal[0]).calibration is not None
    assert uq.tune(cal, method="mse").predict(cal[0]).calibration is None
    uq.conformalize(cal).noise_variance = 2.0
    assert uq.predict(cal[0]).calibration is None
    with pytest.raises(DataError, match="no targets"):
        uq.conformalize(cal[0])
    binary = make("mlp", 1, torch.float64)
    with pytest.raises(OptionError, match="conformalize is for"):
        RichBLL(binary.model, "binary").fit(binary.train).conformalize((binary.train, torch.zeros(60)))
