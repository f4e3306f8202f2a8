"""The regression side of the evidence: splits, backbones, methods on them, and every experiment in its tiny size."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll_bench import experiments, methods
from richbll_bench.data.reading import Examples
from richbll_bench.engine import run
from richbll_bench.errors import UnknownExperimentError, UnknownMethodError
from richbll_bench.experiment import Size
from richbll_bench.experiments.prior_scale import rescaled
from richbll_bench.metrics import gaussian_nll
from richbll_bench.posthoc import NOISE_GRID, PostHoc, network_alone
from richbll_bench.records import Records
from richbll_bench.regression.backbones import setting, trained_backbones
from richbll_bench.regression.network import Scaled, backbone
from richbll_bench.regression.split import split
from richbll_bench.regression.task import Task, scores
from richbll_bench.tables import markdown
from tests.bench.regression_data import made_up

pytestmark = pytest.mark.filterwarnings("ignore:.*too few for plain least squares")
TINY = ("uci", "wine-ood", "subsample", "prior-scale", "data-size")


def test_a_split_is_the_papers() -> None:
    found = split(made_up(1000), seed=3)
    assert [len(x) for x, _ in (found.train, found.validation, found.test)] == [720, 180, 100]
    x, y = found.train
    torch.testing.assert_close(x[:, :3].mean(dim=0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, :3].std(dim=0), torch.ones(3), atol=1e-5, rtol=0)
    assert bool((x[:, 3] == 0).all())  # constant
    assert abs(float(y.mean())) < 1e-4
    assert float(y.std()) > 2  # in its own units
    rows = torch.cat([x for x, _ in (found.train, found.validation, found.test)])
    assert len(rows.unique(dim=0)) == 1000
    assert torch.equal(found.train[0], split(made_up(1000), seed=3).train[0])
    assert not torch.equal(found.train[0], split(made_up(1000), seed=4).train[0])
    torch.testing.assert_close(found.prepared(made_up(1000).x).std(dim=0)[:3], torch.ones(3), atol=0.1, rtol=0)


def test_fewer_rows_keep_the_test_rows() -> None:
    whole = split(made_up(1000), seed=0)
    part = whole.limited(100)
    assert (len(part.train[0]), len(part.validation[0])) == (80, 20)
    assert torch.equal(part.test[0], whole.test[0])


def test_the_backbone_is_in_mup() -> None:
    """At the start every layer's output is of order 1 but the last's, which falls with the width; φ^r stays bounded."""
    x = torch.randn(500, 8)
    for width in (50, 800):
        model = backbone(8, seed=0, width=width)
        hidden = model[2](model[1](model[0](x)))
        assert 0.3 < float(hidden.detach().std()) < 1.5
        assert float(model(x).detach().std()) < 3 * width**-0.5
        a = model[:4](x)
        assert float((a.detach() * width**-0.5).square().sum(dim=1).mean()) < 2


def test_backbones_are_kept_and_the_best_epoch_is_the_validation_rows(data: Examples) -> None:
    wanted = setting("boston", tiny=True)
    first = trained_backbones(wanted, (0, 1))
    again = trained_backbones(wanted, (1, 0))
    assert torch.equal(first[0].model[0].weight, again[1].model[0].weight)
    for one in first:
        x, y = one.split.validation
        with torch.no_grad():
            error = float((one.selected(x) - y).square().mean())
        assert error == pytest.approx(one.validation_mse, rel=1e-4)
        assert one.epochs in (10, 20)
        assert not torch.equal(one.model[0].weight, one.selected[0].weight)  # trained again, on more rows


def test_each_method_is_what_it_says(data: Examples) -> None:
    task = Task(setting("boston", tiny=True), (0, 1), tiny=True)
    one = task.backbones[0]
    x, y = one.split.test
    bll, rich = (methods.load(name).fit(task)[0].predict(x) for name in ("bll", "rich_bll"))
    mine = RichBLL(one.model, noise_variance=one.noise_variance, progress=False).fit(one.split.everything_but_test)
    torch.testing.assert_close(rich.std, mine.predict(x).std)
    assert bool((rich.epistemic_variance >= bll.epistemic_variance).all())
    assert float(methods.load("map").fit(task)[0].predict(x).epistemic_variance.max()) == 0
    found = scores(methods.load("rich_bll").fit(task)[0], (x, y))
    variance = rich.epistemic_variance + one.noise_variance
    assert found["nll"] == pytest.approx(float(gaussian_nll(rich.mean, variance, y)), rel=1e-5)
    assert found["noise_variance"] == one.validation_mse


def test_the_grid_is_searched_on_the_validation_rows(data: Examples) -> None:
    """For the network alone the best noise is the validation error itself, which is in the grid."""
    task = Task(setting("boston", tiny=True), (0,), tiny=True)
    found = PostHoc("map_grid", "", "", network_alone, grid=True).fit(task)[0]
    assert found.chosen["noise_variance"] == pytest.approx(task.backbones[0].validation_mse)
    assert 1.0 in NOISE_GRID


def test_a_rescaled_network_is_the_same_function() -> None:
    model, x = backbone(3, seed=0), torch.randn(40, 3)
    other = rescaled(model, 0.01)
    torch.testing.assert_close(other(x), model(x))
    assert isinstance(other[-1], Scaled)
    data = torch.randn(200, 3, dtype=torch.float64)

    def std(network: nn.Module, enrich: bool) -> torch.Tensor:
        uq = RichBLL(network, noise_variance=0.1, ridge=0.0, enrich=enrich, progress=False)
        return uq.fit(data).predict(x.double()).epistemic_variance.sqrt()

    model, other = model.double(), other.double()
    torch.testing.assert_close(std(other, True), std(model, True), rtol=0.05, atol=0)
    assert float((std(other, False) / std(model, False)).max()) < 0.5


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UnknownMethodError, match="Did you mean rich_bll"):
        methods.load("rich_bl")
    with pytest.raises(UnknownExperimentError, match="Did you mean wine-ood"):
        experiments.load("wine-od")


@pytest.mark.parametrize("name", TINY)
def test_tiny_experiments_leave_records_tables_and_figures(
    name: str,
    data: Examples,
    tmp_path: Path,
) -> None:
    experiment, records = experiments.load(name), Records(tmp_path / "records")
    assert run(experiment, Size(2, tiny=True), records, progress=False) > 0
    assert run(experiment, Size(2, tiny=True), records, progress=False) == 0
    found = records.read(name)
    for table in experiment.tables(found):
        text = markdown(table)
        assert not re.search(r"\bnan\b", text)
        assert table.rows
    for figure in experiment.figures(found):
        path = tmp_path / f"{figure.name}.png"
        figure.draw().savefig(path)
        assert path.stat().st_size > 5000


def test_a_data_set_that_the_paper_does_not_have(data: Examples, tmp_path: Path) -> None:
    experiment, records = experiments.load("uci"), Records(tmp_path / "records")
    jobs = [job for job in experiment.jobs(Size(1, tiny=True, datasets=("wine_white",))) if "bll" in job.methods]
    for record in jobs[0].run(jobs[0]):
        records.append(record)
    tables = {table.name: table for table in experiment.tables(records.read("uci"))}
    assert "wine_white" in markdown(tables["uci_others"])
