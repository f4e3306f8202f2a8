"""The demo runs, writes what it says it writes, and its parts are right."""

import json

import numpy as np
import torch
from torch import nn

from richbll_bench import demo
from richbll_bench.metrics import coverage, gaussian_crps, gaussian_nll
from richbll_bench.ntk_gp import fit_ntk_gp
from tests.reference import dense


def test_tiny_run(tmp_path, capsys) -> None:
    demo.main(["--tiny", "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    for name in ("MAP", "BLL", "Rich-BLL", "Rich-BLL (S)", "NTK-GP", "NLL", "CRPS", "90 % coverage", "demo.png"):
        assert name in printed
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert list(record["table"]) == ["MAP", "BLL", "Rich-BLL", "Rich-BLL (S)", "NTK-GP"]
    assert len(record["splits"]) == record["settings"]["table_splits"] == 2
    for row in record["table"].values():
        assert all(np.isfinite(value) for value in row.values())
    gap = {name: row["gap"] for name, row in record["curve"].items()}
    assert gap["BLL"] <= gap["Rich-BLL"]


def test_ntk_gp_equals_the_dense_truth() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    x, test = torch.randn(25, 3), torch.randn(4, 3)
    pred = fit_ntk_gp(model, x, noise_variance=0.2).predict(test)
    train_j, test_j = dense.jacobians(model, "2", (x,)), dense.jacobians(model, "2", (test,))
    want = dense.ntk_covariance(train_j.phi_r[0], train_j.phi_m[0], test_j.phi_r[0], test_j.phi_m[0], 0.2)
    np.testing.assert_allclose(pred.epistemic_variance[:, 0].numpy(), want.diagonal(), rtol=1e-6)


def test_metrics_against_their_definitions() -> None:
    torch.manual_seed(0)
    mean, variance, y = torch.randn(6, 1).double(), torch.rand(6, 1).double() + 0.1, torch.randn(6, 1).double()
    normal = torch.distributions.Normal(mean, variance.sqrt())
    assert np.isclose(float(gaussian_nll(mean, variance, y)), -float(normal.log_prob(y).mean()))
    # CRPS = ∫ (F(t) − 1[t ≥ y])² dt
    t = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    integral = torch.trapezoid((normal.cdf(t) - (t >= y).double()).square(), t).mean()
    assert np.isclose(float(gaussian_crps(mean, variance, y)), float(integral), atol=1e-4)
    lower, upper = normal.icdf(torch.tensor(0.05)), normal.icdf(torch.tensor(0.95))
    inside = ((y >= lower) & (y <= upper)).double().mean()
    assert float(coverage(mean, variance, y, level=0.9)) == float(inside)
