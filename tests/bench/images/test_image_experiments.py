"""Experiments with images from the command to the page, on small pretended images."""

from pathlib import Path

import pytest
import torch

from richbll.cli.main import main
from richbll.predictive import SCORES
from richbll_bench import experiments, image_datasets
from richbll_bench.engine import run
from richbll_bench.errors import EngineError
from richbll_bench.experiment import Size
from richbll_bench.experiments import cifar, image_prior, image_scores
from richbll_bench.images import gradients, methods
from richbll_bench.images.cnn import cnn
from richbll_bench.images.proxies import PROXIES
from richbll_bench.records import Records
from richbll_bench.report import page, sections

pytestmark = [
    pytest.mark.usefixtures("pretended"),
    pytest.mark.filterwarnings("ignore::richbll.errors.RichBLLWarning"),
]


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_cifar_from_the_command_to_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [word for name in ("map", "bll", "rich_bll_s", "ll_laplace", "rich_bll_ggn") for word in ("--method", name)]
    assert typed("bench", "cifar", "--tiny", "--seeds", "1", *some, "--records", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "Rich-BLL (S)" in printed
    assert "paper" in printed
    records = Records(tmp_path / "tiny")
    found = records.read("cifar")
    assert len(found) == 5
    assert typed("bench", "cifar", "--tiny", "--seeds", "1", *some, "--records", str(tmp_path)) == 0
    assert "cifar: 0 jobs to run" in capsys.readouterr().out  # all on record
    assert len(records.read("cifar")) == 5
    (section,) = [s for s in sections(records, tiny=True) if s.name == "cifar"]
    assert section.problems == []
    assert len(section.pictures) == 2
    assert {table["name"].split("-")[1] for table in section.tables} == {
        "cifar",
        "measures",
        "scores",
        "paired",
        "default",
    }
    text = page([section], tiny=True)
    assert "Reliability" in text
    assert "AUROC by score" in text


def test_a_quick_pair(tmp_path: Path) -> None:
    experiment, records = experiments.load("cifar"), Records(tmp_path)
    size = Size(1, tiny=True, datasets=("fashion_mnist",), methods=("map", "rich_bll_s"))
    assert run(experiment, size, records, progress=False) == 2
    found = records.read("cifar")
    assert "auroc_mnist" in found[0].metrics
    assert any("FPR95 MNIST" in c.title for table in experiment.tables(found) for c in table.columns)


def test_a_method_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(type(methods.load("ll_dropout")), "fit", fails)
    size, records = Size(1, tiny=True, methods=("map", "ll_dropout", "bll")), Records(tmp_path)
    with pytest.raises(EngineError, match=r"1 of 1 jobs failed(.|\n)*ll_dropout, seed 0: RuntimeError: no such luck"):
        run(experiments.load("cifar"), size, records, progress=False)
    assert {record.key.method for record in records.read("cifar")} == {"map", "bll"}


def test_what_the_command_gives_is_in_the_settings() -> None:
    given = Size(1, width=128, epochs=100, images=1000)
    found = cifar.jobs(given)
    assert {(job.settings["width"], job.settings["epochs"], job.settings["num_images"]) for job in found} == {
        (128, 100, 1000)
    }
    assert {name for job in found for name in job.methods} == set(methods.names())
    widths = {job.methods[0]: job.settings["width"] for job in cifar.jobs(Size(1)) if len(job.methods) == 1}
    assert set(widths.values()) <= {16}  # several networks are trained there
    assert all(len(job.seeds) == 1 for job in found)


def test_sizes_are_not_mixed(tmp_path: Path) -> None:
    experiment, records = experiments.load("cifar"), Records(tmp_path)
    run(experiment, Size(1, tiny=True, methods=("map",)), records, progress=False)
    (record,) = records.read("cifar")
    other = [type(record)(**{**vars(record), "settings": {**record.settings, "width": 64}}), record]
    titles = [table.title for table in experiment.tables(other)]
    assert titles[0].startswith("CIFAR-10, width 64")
    assert any(title.startswith("CIFAR-10, width 4") for title in titles)


def test_options_that_an_experiment_does_not_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("bench", "uci", "--tiny", "--width", "3", "--records", str(tmp_path)) == 1
    assert "uci takes no --width" in capsys.readouterr().err


def test_scores_are_chosen_without_the_sets_of_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, records = experiments.load("image-scores"), Records(tmp_path)
    asked = []
    load = image_datasets.load
    monkeypatch.setattr(image_datasets, "load", lambda name, part: asked.append((name, part)) or load(name, part))
    size = Size(1, tiny=True, methods=("map", "rich_bll_s"))
    assert run(experiment, size, records, progress=False) == 2
    assert {name for name, _ in asked} == {"cifar10", "fashion_mnist"}
    found = records.read("image-scores")
    metrics = found[0].metrics
    strange = [*PROXIES, "fashion_mnist"]
    assert metrics["auroc_mean_entropy"] == pytest.approx(
        sum(metrics[f"auroc_{name}_entropy"] for name in strange) / len(strange)
    )
    posteriors, by_score = experiment.tables(found)
    assert posteriors.row("rich_bll_s").cells[0] is not None
    means = [row.cells[0].mean for row in by_score.rows if row.cells[0] is not None]
    assert means == sorted(means, reverse=True)
    assert by_score.rows[0].title in by_score.notes[-1]
    assert image_scores.OFFERED == SCORES
    nll = {name: posteriors.row(name).cells[0].mean for name in ("map", "rich_bll_s")}
    good = {name for name in nll if nll[name] <= nll["map"] + 1e-3}
    names = [row.name.split("/") for row in by_score.rows]
    best = next((posterior, score) for posterior, score in names if posterior in good and score in SCORES)
    assert by_score.notes[1].endswith(f"{methods.load(best[0]).title}: {best[1].replace('_', ' ')}.")


def test_routes_to_the_transform(tmp_path: Path) -> None:
    experiment, records = experiments.load("image-routes"), Records(tmp_path)
    assert run(experiment, Size(1, tiny=True), records, progress=False) == 4
    found = {record.key.method: record.metrics for record in records.read("image-routes")}
    assert set(found) == {"exact", "trak_16", "trak_64", "plain"}
    assert found["exact"]["variance_error"] == found["exact"]["nll_change"] == 0
    assert found["plain"]["variance_error"] > 0
    assert found["trak_64"]["variance_error"] > 0
    (table,) = experiment.tables(records.read("image-routes"))
    assert [row.title for row in table.rows] == ["exact", "TRAK, q = 16", "TRAK, q = 64", "no transform (BLL)"]
    alone = run(experiment, Size(2, tiny=True, methods=("plain",)), records, progress=False)
    assert alone == 1  # seed 1; the exact route is run for it and not recorded
    second = [r for r in records.read("image-routes") if r.key.seed == 1]
    assert second[0].metrics["variance_error"] > 0


def test_prior_scale_and_ridge(tmp_path: Path) -> None:
    experiment, records = experiments.load("image-prior"), Records(tmp_path)
    wanted = [point for point in image_prior.points(tiny=True) if point.posterior in ("bll", "rich_bll_s")]
    names = tuple(point.name for point in wanted)
    assert run(experiment, Size(1, tiny=True, methods=names), records, progress=False) == len(names) == 6
    found = {record.key.method: record.metrics for record in records.read("image-prior")}
    for scale in ("0.0001", "1"):  # more ridge is less rich, and no ridge at all is plain
        variances = [
            found[f"{name}:{scale}:{r}"]["variance"] for name, r in (("bll", 1), ("rich_bll_s", 100), ("rich_bll_s", 1))
        ]
        assert variances == sorted(variances)
    assert found["bll:0.0001:1"]["variance"] < found["bll:1:1"]["variance"]
    table, pairs = experiment.tables(records.read("image-prior"))
    assert sum("chosen" in row.title for row in table.rows) == 3
    difference = pairs.row("cifar10/nll/rich_bll_s:1:1/bll:1:1").cells[0].mean
    assert difference == pytest.approx(found["rich_bll_s:1:1"]["nll"] - found["bll:1:1"]["nll"])
    experiment.figures(records.read("image-prior"))[0].draw()
    assert image_prior.Point.read("bll:0.01:1") == image_prior.Point("bll", 0.01, 1.0)


def test_fewer_images_of_each_class(tmp_path: Path) -> None:
    experiment, records = experiments.load("image-rows"), Records(tmp_path)
    assert run(experiment, Size(1, tiny=True), records, progress=False) == 4
    found = {record.key.method: record.metrics for record in records.read("image-rows")}
    for posterior in ("bll", "rich_bll_s"):  # fewer images, less certainty
        assert found[f"{posterior}:4"]["variance"] > found[f"{posterior}:12"]["variance"]
    assert found["rich_bll_s:4"]["variance"] > found["bll:4"]["variance"]
    (table,) = experiment.tables(records.read("image-rows"))
    assert [row.name for row in table.rows] == ["bll:4", "rich_bll_s:4", "bll:12", "rich_bll_s:12"]
    assert any("Tuned: all variances" in note for note in table.notes)
    experiment.figures(records.read("image-rows"))[0].draw()


def test_the_spectrum_of_the_cnn(tmp_path: Path) -> None:
    experiment, records = experiments.load("spectrum"), Records(tmp_path)
    assert run(experiment, Size(1, tiny=True, model="cnn"), records, progress=False) == 3
    found = {record.key.method: record.metrics for record in records.read("spectrum")}
    assert found["ntk"]["num_rows"] == 40
    assert found["ntk"]["num_last"] == 17
    assert 0 < found["other_layers"]["residual"] <= 1
    assert found["ntk"]["trace"] == pytest.approx(found["other_layers"]["trace"] + found["last_layer"]["trace"])
    (table,) = experiment.tables(records.read("spectrum"))
    assert table.rows[0].title == "CNN of width 4, NTK"
    experiment.figures(records.read("spectrum"))[0].draw()
    with pytest.raises(EngineError, match="no model 'rnn' to take the spectrum of; there are mlp and cnn"):
        experiment.jobs(Size(1, model="rnn"))


@pytest.mark.parametrize("most", [2**28, 50_000])
def test_gradients_of_the_predicted_class_against_autograd(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_MOST_ELEMENTS", most)  # in one group of parameters, or in several
    model = cnn(2, seed=0, num_classes=3).eval()
    x = torch.randn(9, 3, 32, 32)
    found = gradients.class_features(model, x)
    rows = []
    for one in x:
        logits = model(one.unsqueeze(0))[0]
        parts = torch.autograd.grad(logits[logits.argmax()], list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]).double())
    J = torch.stack(rows)
    num_last = sum(p.numel() for p in model[-1].parameters())
    torch.testing.assert_close(found.last, J[:, -num_last:] @ J[:, -num_last:].mT, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.other, J[:, :-num_last] @ J[:, :-num_last].mT, rtol=1e-3, atol=1e-3)
    assert found.num_other == J.shape[1] - num_last
