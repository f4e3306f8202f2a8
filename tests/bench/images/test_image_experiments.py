"""Experiments with images from the command to the page, on small pretended images."""

from pathlib import Path

import pytest

from richbll.cli.main import main
from richbll_bench import experiments, image_datasets
from richbll_bench.engine import run
from richbll_bench.experiment import Size
from richbll_bench.experiments import cifar
from richbll_bench.images import methods
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
    assert "cifar: 0 of" in capsys.readouterr().out  # all on record
    assert len(records.read("cifar")) == 5
    (section,) = [s for s in sections(records, tiny=True) if s.name == "cifar"]
    assert section.problems == []
    assert len(section.pictures) == 2
    assert {table["name"].split("-")[1] for table in section.tables} == {"cifar", "measures", "scores", "paired"}
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
    assert by_score.rows[0].title in by_score.notes[0]
