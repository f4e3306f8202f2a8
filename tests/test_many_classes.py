"""10,000 classes and 512 features: everything within 1 GiB beyond the model, and equal to the dense truth."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import richbll
from richbll import RichBLL
from richbll.core.subsample import smallest
from richbll.errors import MemoryBudgetError
from richbll.rng import row_keys
from tests.reference import dense

C, SIZES = 10_000, (20, 32, 511)  # 511 features and a bias: r = 512
NUM_TRAIN, NUM_TUNE, NUM_CALIBRATION, NUM_TEST = 1100, 32, 32, 256
STATUS = Path("/proc/self/status")


def network(sizes: tuple[int, ...] = SIZES) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], C))
    with torch.no_grad():
        model[-1].weight.mul_(20)  # logits of a trained model's size
    return model


def data(model: nn.Module, num_rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches whose labels are drawn with logits that differ from the model's by N(0, 4)."""
    batches = []
    for x in torch.randn(num_rows, model[0].in_features).split(128):
        f = model(x).detach()
        y = torch.distributions.Categorical(logits=f + 2 * torch.randn_like(f)).sample()
        batches.append((x, y))
    return batches


# ---------------------------------------------------------------------- in a process of its own


def megabytes(name: str) -> float:
    """VmHWM, the peak of this process, or VmRSS, its size now; `ru_maxrss` would begin with the parent's peak."""
    return int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1]) / 1024


def everything(uq: RichBLL, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """All that a prediction can be asked."""
    one = uq.predict(x, score="mutual_information")
    found = {"information": one.ood_score, "log_prob": one.log_prob(y), "set": one.prediction_set(0.8)}
    found |= {"entropy": one.entropy, "variance": one.logit_variance, "probs mc": one.probs}
    found |= {f"probs {link}": uq.predict(x, link=link).probs for link in ("probit", "bridge")}
    for score in ("entropy", "variance", "max_prob", "energy"):
        found[f"score {score}"] = uq.predict(x, link="probit", score=score).ood_score
    found["function"] = uq.sample_functions(2)(x)
    found["mean"], found["epistemic variance"] = uq.as_module()(x)
    return found


def direct_variance(model: nn.Module, x: torch.Tensor, y: torch.Tensor, test: torch.Tensor, sigma2, tau2) -> np.ndarray:
    """The shared posterior's variance by dense float64 algebra; each example gives its own class's gradient."""
    body, head = model[:-1].double(), model[-1].double()
    parameters, own = list(body.parameters()), head.weight.detach()[y]
    rows = [torch.autograd.grad(body(x[i].double()) @ own[i], parameters) for i in range(len(x))]
    phi_m = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]).numpy()
    phi_r, test_r = (nn.functional.pad(body(z.double()).detach(), (0, 1), value=1.0).numpy() for z in (x, test))
    A = dense.projection(phi_r, phi_m, ridge=1.0)
    BtB = np.eye(phi_r.shape[1]) + A.T @ A
    precision = phi_r.T @ phi_r / sigma2 + np.linalg.inv(tau2 * BtB)
    return (test_r * np.linalg.solve(precision, test_r.T).T).sum(1)


def measure() -> dict[str, object]:
    torch.set_num_threads(1)
    model = network()
    train, held_out, calibration, (test, *_) = (data(model, n) for n in (NUM_TRAIN, NUM_TUNE, NUM_CALIBRATION, 128))
    more = torch.randn(NUM_TEST, SIZES[0])
    before, peaks = megabytes("VmRSS"), {}

    # so much noise that variances can be as large as the labels ask for: the best prior is inside the search
    uq = RichBLL(model, "classification", noise_variance=10.0, progress=False).fit(train)
    peaks["fit"] = megabytes("VmHWM") - before
    uq.tune(held_out)
    peaks["tune"] = megabytes("VmHWM") - before
    uq.conformalize(calibration)
    peaks["conformalize"] = megabytes("VmHWM") - before
    found = everything(uq, more, torch.arange(NUM_TEST))
    peaks["predict"] = megabytes("VmHWM") - before

    got = uq.predict(test[0][:8]).logit_variance
    x, y = (torch.cat(parts) for parts in zip(*train, strict=True))
    want = direct_variance(model, x, y, test[0][:8], uq.noise_variance.item(), uq.prior_variance.item())
    sums = torch.stack([found[f"probs {link}"].sum(1) for link in ("mc", "probit", "bridge")])
    return {
        "peaks": peaks,
        "posteriors": len(uq.noise_variance),
        "prior_variance": uq.prior_variance.item(),
        "not finite": [name for name, value in found.items() if not bool(torch.isfinite(value).all())],
        "least": {name: value.min().item() for name, value in found.items()},
        "sums": (sums - 1).abs().max().item(),
        "set sizes": found["set"].sum(1).double().mean().item(),
        "variance error": float(np.abs(got.numpy() / want[:, None] - 1).max()),
    }


@pytest.mark.skipif(not STATUS.exists(), reason="the peak of a process is read from /proc")
def test_ten_thousand_classes_take_less_than_a_gigabyte() -> None:
    paths = [str(Path(richbll.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-W", "error", "-m", "tests.test_many_classes"]
    done = subprocess.run(command, env=environment, cwd=paths[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert max(found["peaks"].values()) < 1024, found["peaks"]
    assert found["posteriors"] == 1
    assert found["prior_variance"] != 1.0
    assert not found["not finite"]
    assert all(found["least"][name] >= 0 for name in found["least"] if "prob" in name and name != "log_prob")
    assert found["sums"] < 1e-4
    assert 1 <= found["set sizes"] <= C
    assert found["variance error"] < 1e-4


# ---------------------------------------------------------------------- what does not fit is told before any work


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"class_posterior": "per_class"}, 'class_posterior="shared"'),
        ({"transform": "per_class"}, 'transform="shared" with class_posterior="shared"'),
        ({"transform": "per_class", "class_posterior": "shared"}, 'transform="shared"'),
    ],
)
def test_one_posterior_for_each_of_many_classes_does_not_fit(options: dict, advice: str) -> None:
    numbers = r"10000 posteriors over 512 features take 117\.2 GiB, but memory_budget is 2 GiB"
    with pytest.raises(MemoryBudgetError, match=rf"^{numbers}\. Raise the budget, or {advice}\.$"):
        RichBLL(network(), "classification", **options).fit([(torch.randn(4, 20), torch.arange(4))])


def test_functions_that_do_not_fit() -> None:
    model = network((20, 16, 31))
    uq = RichBLL(model, "classification", memory_budget="100MiB").fit([(torch.randn(64, 20), torch.arange(64))])
    with pytest.raises(MemoryBudgetError, match=r"50 functions with 10000 outputs over 32 features take 122\.1 MiB"):
        uq.sample_functions(50)


# ---------------------------------------------------------------------- few features: also one posterior per class


def test_a_subsample_of_each_of_many_classes() -> None:
    model = network((3, 4))
    x, y = torch.randn(4000, 3), torch.randint(C, (4000,)) // 4 * 4  # 2,500 classes, most of them more than once
    uq = RichBLL(model, "classification", class_posterior="per_class", subsample=1, seed=3)
    uq.fit(list(zip(x.split(256), y.split(256), strict=True)))
    keys, classes = row_keys(3, 0, 4000), y.numpy()
    assert len(uq.noise_variance) == C
    assert uq.subsample_size == len(np.unique(classes))
    phi = np.pad(model[:-1](x).detach().double().numpy(), ((0, 0), (0, 1)), constant_values=1)
    for k in np.unique(classes)[::500]:
        mine = np.flatnonzero(classes == k)
        (row,) = mine[smallest(keys[mine], 1)]
        root = uq._state.root[k].numpy()  # N_k times its one row
        np.testing.assert_allclose(root.T @ root, len(mine) * np.outer(phi[row], phi[row]), rtol=1e-4, atol=1e-5)
    without = np.setdiff1d(np.arange(C), classes)
    assert bool((uq._state.root[without[::97]] == 0).all())


if __name__ == "__main__":
    print(json.dumps(measure()))
