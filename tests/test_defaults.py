"""Defaults that do not mislead: fit and tune without options, on real data, against the network alone."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from richbll import RichBLL

sklearn = pytest.importorskip("sklearn.datasets", reason="the bench extra is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*edge", "ignore:.*prior_variance", "ignore:.*noise_variance")


def trained(model: nn.Module, x: Tensor, y: Tensor, loss, epochs: int, weight_decay: float = 1e-2) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=weight_decay)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model.eval()


def mlp(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_inputs, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, num_outputs))


def diabetes(seed: int):
    x, y = (torch.as_tensor(a, dtype=torch.float32) for a in sklearn.load_diabetes(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train = order[:265]
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = ((y - y[train].mean()) / y[train].std()).unsqueeze(1)
    return [(x[rows], y[rows]) for rows in (train, order[265:353], order[353:])], 20


def curve(seed: int):
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(600, 1, generator=generator) - 2
    y = torch.sin(3 * x) + 0.3 * torch.randn(600, 1, generator=generator)
    return [(x[rows], y[rows]) for rows in (slice(0, 200), slice(200, 300), slice(300, 600))], 60


@pytest.mark.parametrize("data", [diabetes, curve])
def test_regression_intervals_cover_and_nll_is_not_above_the_networks(data) -> None:
    """Mean over splits, so that a test set of 89 does not decide by its luck."""
    covered, gains, noises = [], [], []
    for seed in range(6):
        (train, val, test), epochs = data(seed)
        torch.manual_seed(seed)
        model = trained(mlp(train[0].shape[1], 1), *train, nn.functional.mse_loss, epochs)
        uq = RichBLL(model).fit(train, val=val)
        pred = uq.predict(test[0])
        lower, upper = pred.interval(0.9)
        covered.append(((test[1] >= lower) & (test[1] <= upper)).double().mean().item())
        with torch.no_grad():
            mse = (model(val[0]) - val[1]).square().mean().item()
            map_nll = 0.5 * ((model(test[0]) - test[1]).square() / mse + math.log(2 * math.pi * mse)).mean().item()
        gains.append(map_nll + pred.log_prob(test[1]).mean().item())
        noises.append(uq.noise_variance.item())
        assert bool((pred.std.square() > pred.epistemic_variance).all())
        assert pred.std.std() > 0  # not one number for all inputs
    assert 0.85 <= np.mean(covered) <= 0.95
    assert np.mean(gains) >= 0
    assert all(abs(noise - 1) > 0.01 for noise in noises)


def ece(p: Tensor, y: Tensor, bins: int = 15) -> float:
    confidence, predicted = p.max(1)
    correct = (predicted == y).double()
    error = 0.0
    for low in torch.arange(bins) / bins:
        mine = (confidence > low) & (confidence <= low + 1 / bins)
        if mine.any():
            error += mine.double().mean().item() * abs(confidence[mine].mean().item() - correct[mine].mean().item())
    return error


def test_digits_are_not_calibrated_worse_than_the_network() -> None:
    x, y = (torch.as_tensor(a) for a in sklearn.load_digits(return_X_y=True))
    x = x.float() / 16
    gaps, errors = [], []
    for seed in range(5):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, val, test = order[:800], order[800:1100], order[1100:]
        torch.manual_seed(seed)
        model = trained(mlp(64, 10), x[train], y[train], nn.functional.cross_entropy, 60, weight_decay=0.0)
        uq = RichBLL(model, "classification").fit((x[train], y[train]), val=(x[val], y[val]))
        pred = uq.predict(x[test])
        with torch.no_grad():
            p = model(x[test]).softmax(1)
        map_nll = -p.gather(1, y[test, None]).log().mean().item()
        gaps.append(-pred.log_prob(y[test]).mean().item() - map_nll)
        errors.append(ece(pred.probs, y[test]) - ece(p, y[test]))
    assert np.mean(gaps) <= 0
    assert np.mean(errors) <= 0


def test_few_rows_of_each_class_leave_the_networks_answers_standing() -> None:
    """100 rows of a class and 257 features: posteriors of their own would be mostly prior, and drown the logits."""
    x, y = (torch.as_tensor(a) for a in sklearn.load_digits(return_X_y=True))
    x = x.float() / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1000], order[1000:]
    torch.manual_seed(0)
    body = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    model = trained(nn.Sequential(*body), x[train], y[train], nn.functional.cross_entropy, 60, weight_decay=0.0)
    with torch.no_grad():
        logits = model(x[test])
    map_nll = nn.functional.cross_entropy(logits, y[test]).item()

    def nll_and_agreement(class_posterior: str) -> tuple[float, float]:
        uq = RichBLL(model, "classification", class_posterior=class_posterior).fit((x[train], y[train]))
        pred = uq.predict(x[test])
        same = (pred.predicted == logits.argmax(dim=1)).double().mean().item()
        return -pred.log_prob(y[test]).mean().item() - map_nll, same

    nll, same = nll_and_agreement("auto")
    assert nll <= 0.01
    assert same >= 0.995
    assert nll_and_agreement("per_class")[0] > 0.1  # what it is spared
