"""Methods that train networks of their own, and the Gaussian process: what they must do, and slow truths."""

import copy
import math

import numpy as np
import pytest
import torch
import vbll
from torch import nn

from richbll_bench import datasets, methods
from richbll_bench.data.reading import Examples
from richbll_bench.methods import bbb, ensemble, rbf_gp
from richbll_bench.methods.vbll import negative_elbo
from richbll_bench.regression.backbones import Setting
from richbll_bench.regression.dropout import Dropping, McDropout, dropout_draws
from richbll_bench.regression.factorised import GaussianLinear
from richbll_bench.regression.swag import Collected
from richbll_bench.regression.task import Task, scores
from richbll_bench.regression.together import Recipe
from richbll_bench.regression.variational_head import VariationalHead, VariationalNetwork

NAMES = ["ensemble", "dropout", "dropout_last_layer", "vbll", "swag", "bbb", "rbf_gp"]
SEEDS = (0, 1)


@pytest.fixture(autouse=True)
def easy_problem(monkeypatch, tmp_path) -> None:
    """200 rows of a smooth function of three inputs, in place of a data set."""

    def load(name: str, **_) -> Examples:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(200, 3))
        y = 3 * x[:, 0] + 2 * np.sin(2 * x[:, 1]) + 0.3 * rng.normal(size=200) + 5
        return Examples(x, y, ("a", "b", "c"), "y")

    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setenv("RICHBLL_CACHE", str(tmp_path))


def task(epochs: int = 40, seeds: tuple[int, ...] = SEEDS, batch_size: int = 16) -> Task:
    return Task(Setting("boston", Recipe(epochs, batch_size)), seeds, tiny=True)


def far(x: torch.Tensor) -> torch.Tensor:
    return 10 * x / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("name", NAMES)
def test_it_learns(name: str) -> None:
    method, given = methods.load(name), task()
    assert method.name == name
    fitted = method.fit(given)
    assert len(fitted) == len(SEEDS)
    for one, part in zip(fitted, given.splits, strict=True):
        x, y = part.test
        found = scores(one, part.test)
        assert all(math.isfinite(value) for value in found.values()), found
        assert found["rmse"] < 0.6 * float(y.square().mean().sqrt()), found
        near, away = one.predict(x).epistemic_variance, one.predict(far(x)).epistemic_variance
        assert (near > 0).all()
        assert away.mean() > 2 * near.mean()  # less is known away from the data


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seeds_give_the_same_prediction(name: str) -> None:
    given = task(4, batch_size=72)
    fitted, again = methods.load(name).fit(given), methods.load(name).fit(task(4, batch_size=72))
    for one, other, part in zip(fitted, again, given.splits, strict=True):
        x, y = part.test
        predictive = one.predict(x)
        assert predictive.mean.shape == predictive.epistemic_variance.shape == y.shape
        assert predictive.noise_variance.numel() == 1
        assert (predictive.variance > 0).all()
        for repeated in (one.predict(x), other.predict(x)):
            assert torch.equal(repeated.mean, predictive.mean)
            assert torch.equal(repeated.variance, predictive.variance)
    first, second = (one.predict(given.splits[0].test[0]).mean for one in fitted)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", ["dropout", "bbb", "vbll"])
def test_a_seed_does_not_depend_on_its_neighbours(name: str) -> None:
    both, one = task(6), task(6, seeds=(1,))
    x, _ = one.splits[0].test
    together, alone = methods.load(name).fit(both)[1].predict(x), methods.load(name).fit(one)[0].predict(x)
    torch.testing.assert_close(together.mean, alone.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(together.variance, alone.variance, rtol=1e-3, atol=1e-3)


def test_members_differ_and_one_member_is_the_backbone() -> None:
    given = task(6)
    x, _ = given.splits[0].test
    single = ensemble.Ensemble(1).fit(given)[0].predict(x)
    backbone = given.backbones[0]
    assert torch.equal(single.mean, backbone.model(x).detach())
    assert not single.epistemic_variance.any()
    assert float(single.noise_variance) == pytest.approx(backbone.validation_mse, rel=1e-5)
    assert (ensemble.Ensemble(2).fit(given)[0].predict(x).epistemic_variance > 0).all()


@pytest.mark.parametrize("last_only", [False, True])
def test_dropout_of_nothing_is_the_network(last_only: bool) -> None:
    x = torch.randn(7, 3)
    network = Dropping(3, 0, 20, 0.0, last_only)
    with torch.no_grad():
        assert torch.equal(network(x), network.layers(x))
        torch.testing.assert_close(dropout_draws(network, 0, 5)(x), network.layers(x).expand(5, 7, 1))


def test_dropout_of_the_last_layer_has_the_known_moments() -> None:
    """f = Σ w z a with z ~ Bernoulli(1 − p) / (1 − p): mean Σ w a and variance p / (1 − p) Σ (w a)²."""
    x, p = torch.randn(4, 3), 0.1
    network = Dropping(3, 0, 20, p, last_only=True)
    with torch.no_grad():
        outputs = dropout_draws(network, 0, 20000)(x)
        parts = network.layers[:-1](x) * network.layers[-1].factor * network.layers[-1].weight
        expected = p / (1 - p) * parts.square().sum(dim=1, keepdim=True)
        assert torch.allclose(outputs.mean(dim=0), network.layers(x), atol=0.01)
        assert torch.allclose(outputs.var(dim=0), expected, rtol=0.06)


def test_dropout_rate_is_of_the_grid() -> None:
    rates = (0.01, 0.2)
    fitted = McDropout("dropout", "", "", rates=rates, num_samples=5).fit(task(4))
    assert {one.chosen["p"] for one in fitted} <= set(rates)


def test_vbll_is_the_package() -> None:
    torch.manual_seed(0)
    x, y, width = torch.randn(11, 3).double(), torch.randn(11, 1).double(), 6
    hidden = nn.Sequential(nn.Linear(3, width), nn.ReLU()).double()
    network = VariationalNetwork(hidden, VariationalHead(width, 0.7).double())
    package = vbll.Regression(width, 1, regularization_weight=1 / 50).double()
    package.load_state_dict(network.head.state_dict(), strict=False)
    theirs = package(hidden(x))
    ours = negative_elbo(50)(network, x, y)
    gradients = torch.autograd.grad(ours, list(network.parameters()), retain_graph=True)
    other = copy.deepcopy(package)
    their_loss = other(hidden(x)).train_loss_fn(y).squeeze()
    torch.testing.assert_close(ours.squeeze(), their_loss, rtol=1e-8, atol=1e-8)
    their_own = dict(other.named_parameters())
    expected = torch.autograd.grad(
        their_loss,
        [their_own.get(name.removeprefix("head."), p) for name, p in network.named_parameters()],
    )
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-8)
    mean, variance, noise = network(x)
    torch.testing.assert_close(mean, theirs.predictive.mean)
    torch.testing.assert_close(variance + noise, theirs.predictive.var)


def test_swag_collects_moments_of_its_own_epochs() -> None:
    torch.manual_seed(0)
    path = torch.randn(12, 2, 5)  # epochs 1 … 12 of two networks
    collected = Collected([4, 9], [8, 9], num_weights=5, num_columns=3)
    for epoch, weights in enumerate(path, start=1):
        collected.add(epoch, weights)
    assert collected.count.tolist() == [5, 1]
    torch.testing.assert_close(collected.mean[0], path[3:8, 0].mean(dim=0))
    torch.testing.assert_close(collected.squares[0] / 5, path[3:8, 0].var(dim=0, correction=0))
    last = path[7, 0] - collected.mean[0]
    assert any(torch.allclose(column, last) for column in collected.columns[0])
    assert not collected.squares[1].any()  # one point
    assert torch.equal(collected.draw(1, 4, seed=0), path[8, 1].expand(4, 5))


def test_swag_draws_have_half_of_both_covariances() -> None:
    torch.manual_seed(0)
    collected = Collected([1], [3], num_weights=4, num_columns=3)
    for epoch in (1, 2, 3):
        collected.add(epoch, torch.randn(1, 4))
    draws = collected.draw(0, 200_000, seed=0)
    columns = collected.columns[0]
    expected = 0.5 * torch.diag(collected.squares[0] / 3) + columns.mT @ columns / (2 * 2)
    torch.testing.assert_close(draws.mT.cov(), expected, rtol=0.05, atol=0.01)


def test_gaussian_layer_is_drawn_weights_and_its_kl_is_torchs() -> None:
    torch.manual_seed(0)
    layer = GaussianLinear(nn.Linear(3, 2), 2.0)
    for log_std in (layer.weight_log_std, layer.bias_log_std):
        nn.init.normal_(log_std, std=0.3)
    std = torch.cat([layer.weight_log_std, layer.bias_log_std.unsqueeze(1)], dim=1).exp()
    mean = torch.cat([2 * layer.weight, layer.bias.unsqueeze(1)], dim=1)
    normal = torch.distributions.Normal
    torch.testing.assert_close(layer.kl(), torch.distributions.kl_divergence(normal(mean, std), normal(0.0, 1.0)).sum())
    x = torch.randn(3)
    with torch.no_grad():
        outputs = layer(x.expand(100_000, 3))
        drawn = normal(mean, std).sample((100_000,)) @ torch.cat([x, torch.ones(1)])
    torch.testing.assert_close(outputs.mean(dim=0), drawn.mean(dim=0), rtol=0.03, atol=0.03)
    torch.testing.assert_close(outputs.var(dim=0), drawn.var(dim=0), rtol=0.03, atol=0.0)


def test_bbb_objective_counts_rows() -> None:
    def network(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x, torch.ones(1), torch.tensor(7.0)

    zeros = torch.zeros(3, 1)
    assert float(bbb.negative_elbo(14)(network, zeros, zeros)) == pytest.approx(0.5 * math.log(2 * math.pi) + 0.5)


def test_gp_is_the_literal_algebra() -> None:
    part = task().splits[0]
    x, y = (tensor.double() for tensor in part.everything_but_test)
    fitted = rbf_gp.RbfGp(5, 1000)._fitted(part.everything_but_test, 0)
    process, scale = rbf_gp.RbfProcess(x, (y / y.std()).squeeze(1)), float(y.std())
    rbf_gp.maximise_evidence(process, 5)
    length = process.covar_module.base_kernel.lengthscale.detach()
    size, noise = process.covar_module.outputscale.item(), process.likelihood.noise.item()
    level = process.mean_module.constant.item()

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return size * torch.exp(-0.5 * ((a.unsqueeze(1) - b) / length).square().sum(dim=2))

    new = part.test[0].double()
    inverse = torch.linalg.inv(kernel(x, x) + noise * torch.eye(len(x), dtype=torch.float64))
    mean = level + kernel(new, x) @ inverse @ (y / scale - level)
    variance = size - (kernel(new, x) @ inverse * kernel(new, x)).sum(dim=1, keepdim=True)
    predictive = fitted.predict(part.test[0])
    torch.testing.assert_close(predictive.mean, scale * mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(predictive.epistemic_variance, scale**2 * variance, rtol=1e-4, atol=1e-6)
    assert float(predictive.noise_variance) == pytest.approx(scale**2 * noise, rel=1e-5)
    assert fitted.chosen["noise_variance"] == pytest.approx(scale**2 * noise, rel=1e-5)


def test_gp_of_many_rows_conditions_on_all_of_them() -> None:
    part = task().splits[0]
    some = rbf_gp.RbfGp(20, 50)._fitted(part.everything_but_test, 0)
    x, y = part.everything_but_test
    assert float((some.predict(x).mean - y).square().mean().sqrt()) < 0.6
    assert some.predict(x[:5]).epistemic_variance.max() < some.predict(far(x[:5])).epistemic_variance.min()
