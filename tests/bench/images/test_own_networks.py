"""Methods that train networks of their own."""

import pytest
import torch
from torch import nn

from richbll_bench.images import methods
from richbll_bench.images.backbones import Setting
from richbll_bench.images.cnn import cnn, hidden_weights
from richbll_bench.images.draws import averaged
from richbll_bench.images.evaluation import evaluated
from richbll_bench.images.gaussian_cnn import Uncertain, gaussian_cnn, total_kl
from richbll_bench.images.own_network import with_dropout
from richbll_bench.images.sngp import BOUND, BoundedConv, RandomFeatures, precision_root, sngp, variance
from richbll_bench.images.task import Task

OWN = [name for name in methods.names() if methods.load(name).own_networks]


@pytest.fixture
def task(pretended) -> Task:
    setting = Setting("cifar10", width=4, epochs=1, num_images=100, num_test=20, precision="float32")
    return Task(setting, seed=0, per_class=8, num_samples=3)


def test_the_paper_s_methods_are_there() -> None:
    assert {"sngp", "dropout", "ensemble", "bbb"} <= set(OWN)


@pytest.mark.parametrize("name", OWN)
def test_every_method_gives_probabilities_and_its_score(name: str, task: Task) -> None:
    method = methods.load(name)
    fitted = method.fit(task)
    metrics = evaluated(fitted, task, method.score)
    assert metrics["nll"] > 0
    assert 0 <= metrics["auroc_svhn"] <= 1
    assert metrics["fit_seconds"] > 0  # that of training
    again = fitted.predict("test")
    assert torch.equal(again.log_probs, fitted.predict("test").log_probs)
    torch.testing.assert_close(again.log_probs.exp().sum(dim=1), torch.ones(20).double())


def test_members_differ_and_the_first_is_shared(task: Task) -> None:
    predicted = methods.load("ensemble").fit(task).predict("test")
    assert bool((predicted.scores["mutual_information"] > 0).any())
    alone = methods.load("map").fit(task).predict("test")
    assert not torch.allclose(predicted.log_probs, alone.log_probs)


def test_the_mean_of_draws() -> None:
    draws = torch.randn(7, 5, 3)
    found = averaged(iter(draws))
    p = draws.double().softmax(dim=2)
    torch.testing.assert_close(found.log_probs.exp(), p.mean(dim=0))
    own = -(p * p.log()).sum(dim=2).mean(dim=0)
    torch.testing.assert_close(found.scores["mutual_information"], found.scores["entropy"] - own)


def test_dropout_stays_on_and_norms_stay_off() -> None:
    model = with_dropout(cnn(4, 0, dropout=0.5))
    x = torch.randn(3, 3, 32, 32)
    assert not torch.equal(model(x), model(x))
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_draws_of_a_gaussian_layer_have_its_mean_and_variance() -> None:
    layer = Uncertain(nn.Linear(3, 2), 0.5)
    layer.log_std.data.uniform_(-1, 0)
    x = torch.randn(1, 3)
    with torch.no_grad():
        draws = torch.cat([layer(x) for _ in range(20_000)])
        mean = 0.5 * x @ layer.layer.weight.mT + layer.layer.bias
        spread = (0.25 * x.square() @ (2 * layer.log_std).exp().mT).sqrt()
    torch.testing.assert_close(draws.mean(0), mean[0], rtol=0, atol=0.03)
    torch.testing.assert_close(draws.std(0), spread[0], rtol=0.03, atol=0)


def test_kl_against_torch() -> None:
    model = gaussian_cnn(2, seed=0, num_classes=3)
    total = torch.zeros(())
    for layer in model.modules():
        if isinstance(layer, Uncertain):
            q = torch.distributions.Normal(layer.layer.weight, layer.log_std.exp())
            total = total + torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, layer.prior_std)).sum()
    torch.testing.assert_close(total_kl(model), total)
    assert len(list(hidden_weights(model))) == 6
    assert not any("log_std" in name for name in hidden_weights(model))


def test_the_gain_of_a_bounded_convolution() -> None:
    conv = BoundedConv(3, 8)
    conv.weight.data *= 40
    x = torch.randn(2, 3, 8, 8)
    for _ in range(60):
        conv(x)
    matrix = conv.weight.detach().flatten(1)
    gain = torch.linalg.matrix_norm(matrix, 2)
    assert float(gain) > BOUND
    expected = torch.nn.functional.conv2d(x, conv.weight * (BOUND / gain), padding=1)
    torch.testing.assert_close(conv(x), expected, rtol=1e-3, atol=1e-3)
    conv.weight.data *= 1e-3
    conv(x)
    torch.testing.assert_close(conv(x), torch.nn.functional.conv2d(x, conv.weight, padding=1))


def test_random_features_are_those_of_a_radial_kernel() -> None:
    features = RandomFeatures(4, 200_000)
    a = torch.randn(3, 4)
    phi = features(a) / 100_000**0.5  # D/2
    kernel = torch.exp(-torch.cdist(a, a).square() / 4)  # length scale √2
    torch.testing.assert_close(phi @ phi.mT, kernel, rtol=0, atol=0.02)


def test_the_posterior_of_sngp_against_plain_algebra() -> None:
    phi, new = torch.randn(30, 6), torch.randn(4, 6)
    S = torch.linalg.inv(torch.eye(6).double() + phi.double().mT @ phi.double())
    expected = (new.double() @ S * new.double()).sum(dim=1)
    torch.testing.assert_close(variance(precision_root(phi), new), expected)
    model = sngp(2, seed=0, num_classes=3, num_features=16)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    assert len(list(hidden_weights(model))) == 6
