"""Costs are measured as they say, and memory grows as it must; no test asserts a time."""

import io

import pytest
import torch

from richbll_bench import experiments
from richbll_bench.costs import cpu_seconds, exponent, tensor_bytes
from richbll_bench.engine import run
from richbll_bench.experiment import Size
from richbll_bench.experiments import complexity
from richbll_bench.records import Record, Records
from richbll_bench.tables import markdown


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, ...]:
    kept = Records(tmp_path_factory.mktemp("records"))
    experiment = experiments.load("complexity")
    assert run(experiment, Size(1, tiny=True), kept, progress=False) == 45
    assert run(experiment, Size(1, tiny=True), kept, progress=False) == 0
    return kept.read("complexity")


def test_every_ratio_is_there(records: tuple[Record, ...]) -> None:
    for record in records:
        wanted = {"N", "r", "m", "predict_passes", "predict_units"}
        if record.key.method != "map":
            wanted |= {"fit_yards", "fit_units", "peak_mb", "kept_mb"}
        assert set(record.metrics) == wanted
        assert all(value > 0 for value in record.metrics.values())


def test_one_size_is_varied_at_a_time(records: tuple[Record, ...]) -> None:
    for axis in complexity.AXES:
        sizes = {tuple(r.metrics[a] for a in complexity.AXES) for r in records if r.settings["axis"] == axis}
        for other, values in zip(complexity.AXES, zip(*sizes, strict=True), strict=True):
            spread = max(values) / min(values)
            assert spread > 3 if other == axis else spread < 1.05, (axis, other)


def test_memory_for_predictions_grows_as_the_paper_says(records: tuple[Record, ...]) -> None:
    def grows(axis: str, method: str) -> float:
        cell = complexity.growth(records, axis, method, "kept_mb")
        assert cell is not None
        assert cell.mean is not None
        return cell.mean

    for method in ("bll", "rich_bll", "rich_bll_s"):
        assert abs(grows("N", method)) < 0.1
        assert 1.7 < grows("r", method) < 2.2
        assert abs(grows("m", method)) < 0.1
    assert 1 < grows("N", "ntk_gp") <= 2  # N × p gradients and an N × N factor
    assert grows("m", "ntk_gp") > 0.5


def test_the_ntk_gp_keeps_its_gradients_and_its_factor(records: tuple[Record, ...]) -> None:
    for record in records:
        if record.key.method == "ntk_gp":
            N, p = record.metrics["N"], record.metrics["m"] + record.metrics["r"]
            assert record.metrics["kept_mb"] == pytest.approx(8e-6 * N * (N + p), rel=0.01)
            assert record.metrics["peak_mb"] >= record.metrics["kept_mb"]


def test_tables_stand_beside_the_papers(records: tuple[Record, ...]) -> None:
    fit, kept, predict, costs = complexity.tables(records)
    assert "O(N³ + N²p)" in markdown(fit)
    assert fit.columns[1].origin == "paper"
    cell = fit.rows[1].cells[3]  # the paper's exponent of r
    assert (fit.rows[1].name, cell and cell.text) == ("rich_bll", "2–3")
    assert "O(r²)" in markdown(kept)
    assert predict.rows[0].name == "map"
    assert costs.title == "Costs at N = 384, r = 17, m = 544"
    out = io.BytesIO()
    complexity.figures(records)[0].draw().savefig(out, dpi=40)
    assert out.getvalue().startswith(b"\x89PNG")


def test_m_is_that_of_the_network() -> None:
    for shape in (complexity.BASE, complexity.TINY, complexity.TINY.with_m(3000)):
        model, x, test = complexity.network(shape, seed=0)
        count = sum(p.numel() for p in model.parameters())
        assert count == shape.m + shape.r
        assert (len(x), len(test)) == (shape.N, shape.num_test)
    assert abs(complexity.BASE.with_m(33_000).m - 33_000) < 81


def test_the_ntk_gp_is_left_out_where_it_does_not_fit() -> None:
    methods = {job.dataset: job.methods for job in complexity.jobs(Size(1))}
    assert "ntk_gp" in methods["N=4096"]
    assert "ntk_gp" not in methods["N=8192"]
    assert all("rich_bll" in names for names in methods.values())


def test_bytes_are_counted() -> None:
    def work() -> torch.Tensor:
        large = torch.zeros(1000, 1000)
        return large.sum(dim=0)

    peak, kept = tensor_bytes(work)
    assert kept == 4000
    assert 4_004_000 <= peak < 4_100_000


def test_exponents() -> None:
    assert exponent([1, 2, 4, 8], [5, 10, 20, 40]) == pytest.approx(1)
    assert exponent([1, 10, 100], [7, 7, 7]) == pytest.approx(0)
    calls: list[int] = []
    assert cpu_seconds(lambda: calls.append(1)) > 0
    assert len(calls) == 25  # a short thing is timed often
