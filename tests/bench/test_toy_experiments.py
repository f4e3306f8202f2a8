"""The toy figures and the spectra: tiny runs through the engine, and what their numbers must say."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from richbll_bench import experiments
from richbll_bench.class_metrics import auroc, calibration_error
from richbll_bench.data.reading import Examples
from richbll_bench.engine import run
from richbll_bench.experiment import Size
from richbll_bench.experiments import toy_classification, toy_regression
from richbll_bench.nets import mlp
from richbll_bench.ntk_gp import fit_ntk_gp
from richbll_bench.records import Records
from richbll_bench.spectra import best_residual, eigenvalues, features, residual
from richbll_bench.tables import markdown
from richbll_bench.toys.classes import PROBLEMS, far_inputs
from richbll_bench.toys.curve import curve_inputs, regions
from tests.reference import dense

pytestmark = pytest.mark.filterwarnings("ignore:.*too few for plain least squares")


@pytest.mark.parametrize(
    ("name", "num_records", "num_tables", "num_figures"),
    [("toy-regression", 10, 1, 1), ("toy-classification", 20, 2, 2), ("spectrum", 12, 1, 1)],
)
def test_tiny_run(
    name: str, num_records: int, num_tables: int, num_figures: int, data: Examples, tmp_path: Path
) -> None:
    experiment, records = experiments.load(name), Records(tmp_path)
    assert experiment.name == name
    assert run(experiment, Size(2, tiny=True), records, progress=False) == num_records
    assert run(experiment, Size(2, tiny=True), records, progress=False) == 0
    found = records.read(name)
    assert len(found) == num_records
    assert all(np.isfinite(value) for record in found for value in record.metrics.values())
    tables = experiment.tables(found)
    assert len(tables) == num_tables
    for table in tables:
        assert all(any(cell is not None for cell in row.cells) for row in table.rows)
        assert table.rows[0].title in markdown(table)
    figures = experiment.figures(found)
    assert len(figures) == num_figures
    for figure in figures:
        out = io.BytesIO()
        figure.draw().savefig(out, dpi=40)
        assert out.getvalue().startswith(b"\x89PNG")
        assert figure.caption.endswith(".")


@pytest.mark.parametrize("name", ["toy-regression", "toy-classification", "spectrum", "complexity"])
def test_nothing_to_show_without_records(name: str) -> None:
    assert experiments.load(name).tables([]) == []
    assert experiments.load(name).figures([]) == []


# ---------------------------------------------------------------------- the curve


def test_rich_bll_is_nearer_to_the_ntk_gp_than_bll_in_the_gap() -> None:
    settings = replace(toy_regression.Settings(), epochs=500)
    found = toy_regression.curves(settings, seed=0)
    scores = {name: toy_regression.scores(found, name, settings.noise_std) for name in toy_regression.METHODS}
    gap = {name: one["std_gap"] for name, one in scores.items()}
    assert gap["map"] == 0
    assert gap["bll"] < 0.6 * gap["rich_bll"]
    assert abs(gap["rich_bll"] - gap["ntk_gp"]) < abs(gap["bll"] - gap["ntk_gp"])
    assert scores["rich_bll"]["distance_between"] < 0.8 * scores["bll"]["distance_between"]
    assert scores["rich_bll"]["std_inside"] == pytest.approx(scores["ntk_gp"]["std_inside"], rel=0.15)
    assert scores["rich_bll"]["nll_gap"] < scores["bll"]["nll_gap"] < scores["map"]["nll_gap"]
    again = toy_regression.curves(settings, seed=0)  # what a figure does
    for name, pred in again.predictions.items():
        assert torch.equal(pred.variance, found.predictions[name].variance)


def test_the_nll_is_expected_over_the_noise() -> None:
    settings = replace(toy_regression.TINY, epochs=20)
    found = toy_regression.curves(settings, seed=1)
    where = regions(found.x)["inside"]
    pred, truth = found.predictions["bll"], toy_regression.true_curve(found.x)
    y = truth + settings.noise_std * torch.randn(20_000, *truth.shape, generator=torch.Generator().manual_seed(0))
    drawn = -torch.distributions.Normal(pred.mean, pred.std).log_prob(y).mean(dim=0)[where].mean()
    assert toy_regression.scores(found, "bll", settings.noise_std)["nll_inside"] == pytest.approx(
        float(drawn), rel=1e-2
    )


def test_regions_are_those_of_the_data() -> None:
    x, _ = toy_regression.curve_data(200, 0.1, seed=0)
    assert bool(regions(x)["inside"].all())
    parts = regions(curve_inputs())
    assert bool((sum(part.int() for part in parts.values()) == 1).all())


# ---------------------------------------------------------------------- two classes


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_far_inputs_are_far_and_in_the_box(name: str) -> None:
    problem = PROBLEMS[name]
    x, y = problem.sample(100, 0)
    assert x.shape == (100, problem.num_inputs)
    assert set(y.flatten().tolist()) == {0.0, 1.0}
    far = far_inputs(problem, x, 300, seed=0)
    assert far.shape == (300, problem.num_inputs)
    assert float(torch.cdist(far, x).min()) > problem.apart
    assert bool((far.abs() <= torch.tensor(problem.box)).all())


def test_the_ntk_gp_of_two_classes_equals_the_dense_truth() -> None:
    """Linearised Laplace: a row's noise is 1/p(1 − p)."""
    model = mlp(2, 6, seed=0, activation=nn.ReLU)
    x, test = torch.randn(25, 2), torch.randn(4, 2)
    train_j, test_j = dense.jacobians(model, "4", (x,)), dense.jacobians(model, "4", (test,))
    phi, phi_test = (np.concatenate([j.phi_r[0], j.phi_m[0]], axis=1) for j in (train_j, test_j))
    p = 1 / (1 + np.exp(-train_j.f[:, 0]))
    noise = 1 / (p * (1 - p))
    inner = np.linalg.solve(3.0 * phi @ phi.T + np.diag(noise), 3.0 * phi @ phi_test.T)
    want = 3.0 * (phi_test**2).sum(axis=1) - (3.0 * phi_test @ phi.T * inner.T).sum(axis=1)
    found = fit_ntk_gp(model, x, noise_variance=torch.from_numpy(noise), prior_variance=3.0).variance(test)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-6)


def test_rich_bll_is_less_sure_far_from_the_moons() -> None:
    settings = replace(toy_classification.Settings(), num_points=150, num_test=300, epochs=400)
    found = toy_classification.trained("moons", settings, seed=0)
    scores = toy_classification.scores(found, "moons", toy_classification.METHODS)
    assert scores["map"]["std_far"] == 0
    assert scores["bll"]["std_far"] < 0.5 * scores["rich_bll"]["std_far"]
    assert scores["rich_bll"]["distance"] < scores["bll"]["distance"]
    assert scores["map"]["auroc"] < scores["bll"]["auroc"] < scores["rich_bll"]["auroc"]
    assert scores["rich_bll"]["auroc_variance"] > 0.95
    assert all(one["accuracy"] > 0.9 for one in scores.values())
    assert "distance" not in scores["ntk_gp"]


def test_class_metrics_against_their_definitions() -> None:
    low, high = torch.randn(40).round(decimals=1), (torch.randn(30) + 0.5).round(decimals=1)  # with ties
    labels = torch.cat([torch.zeros(40), torch.ones(30)])
    assert auroc(low, high) == pytest.approx(roc_auc_score(labels.numpy(), torch.cat([low, high]).numpy()))
    confidence, correct = 0.5 + 0.5 * torch.rand(200).double(), torch.rand(200) < 0.8
    want = 0.0
    for k in range(15):
        inside = (confidence >= k / 15) & (confidence < (k + 1) / 15)
        if inside.any():
            want += float(inside.double().mean() * (confidence[inside].mean() - correct[inside].double().mean()).abs())
    assert float(calibration_error(confidence, correct)) == pytest.approx(want)
    assert float(calibration_error(torch.ones(3), torch.ones(3, dtype=torch.bool))) == 0


# ---------------------------------------------------------------------- spectra


def test_residual_and_spectrum_equal_the_dense_truth() -> None:
    model, x = mlp(3, 8, seed=0), torch.randn(40, 3)
    found, truth = features(model, x), dense.jacobians(model, "4", (x,))
    phi_r, phi_m = truth.phi_r[0], truth.phi_m[0]
    left = phi_m - phi_r @ np.linalg.lstsq(phi_r, phi_m, rcond=1e-7)[0]
    assert residual(found) == pytest.approx(np.linalg.norm(left) / np.linalg.norm(phi_m), rel=1e-6)
    assert 0 < best_residual(found) < residual(found) <= 1
    values = np.linalg.eigvalsh(phi_r @ phi_r.T + phi_m @ phi_m.T)[::-1]
    np.testing.assert_allclose(eigenvalues(found.kernels["ntk"]).numpy(), values, atol=1e-6 * values[0])
    singular = np.linalg.svd(phi_m, compute_uv=False)
    assert best_residual(found) == pytest.approx(np.linalg.norm(singular[9:]) / np.linalg.norm(singular), rel=1e-6)


def test_a_network_whose_last_layer_has_all_directions_leaves_no_residual() -> None:
    """The appendix's lemma: without activations, every gradient is linear in the last layer's features."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
    assert residual(features(model, torch.randn(30, 3))) < 1e-6


def test_metrics_of_a_spectrum(data: Examples, tmp_path: Path) -> None:
    experiment, records = experiments.load("spectrum"), Records(tmp_path)
    run(experiment, Size(1, tiny=True), records, progress=False)
    for record in records.read("spectrum"):
        metrics = record.metrics
        assert 0 < metrics["share_10"] <= metrics["share_50"] <= 1 + 1e-9
        assert 1 <= metrics["effective_rank"] <= metrics["num_rows"]
        assert metrics["num_90"] <= metrics["num_99"]
        assert metrics["cumulative_1"] == pytest.approx(metrics["eigenvalue_1"])
        if record.key.method == "other_layers":
            assert 0 < metrics["best_residual"] <= metrics["residual"] <= 1
        if record.key.method == "last_layer":
            assert metrics["num_99"] <= metrics["num_last"] == 51
