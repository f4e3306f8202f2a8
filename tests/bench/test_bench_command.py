"""`richbll bench` and `richbll report`, as they are typed."""

from pathlib import Path

import pytest

from richbll.cli.main import main
from richbll_bench import experiments
from richbll_bench.data.reading import Examples


def typed(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.filterwarnings("ignore:.*too few for plain least squares")
def test_from_an_experiment_to_the_page(data: Examples, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, page = tmp_path / "records", tmp_path / "report.html"
    some = ["--method", "map", "--method", "bll", "--method", "rich_bll"]
    assert typed("bench", "uci", "--tiny", "--seeds", "2", *some, "--records", str(records)) == 0
    printed = capsys.readouterr().out
    assert "6 records" in printed
    assert "Rich-BLL" in printed
    assert (records / "tiny" / "uci.jsonl").is_file()
    assert typed("report", "--tiny", "--records", str(records), "--out", str(page)) == 0
    assert "1 of" in capsys.readouterr().out
    assert "Rich-BLL" in page.read_text()


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("bench") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in experiments.names())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "ucci"], "There is no experiment 'ucci'"),
        (["bench", "uci", "--tiny", "--engine", "slurm"], "There is no engine 'slurm'; there are local, ray"),
        (["bench", "uci", "--tiny", "--method", "magic"], "uci has no method 'magic'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], said: str, data: Examples, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(*arguments, "--records", str(tmp_path)) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl"))
