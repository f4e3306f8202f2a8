"""Records come back as they were written, tell what is done, and name the code they came from."""

import json
import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import richbll
from richbll.errors import RichBLLWarning
from richbll_bench import provenance
from richbll_bench.errors import RecordError
from richbll_bench.records import Key, Record, Records, new_record

KEY = Key("uci", "boston", "rich_bll", 3)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records")


def record(key: Key = KEY, nll: float = 2.5, **settings: object) -> Record:
    return new_record(key, settings, {"nll": nll}, 1.5)


def test_round_trip(records: Records) -> None:
    metrics = {"nll": torch.tensor(2.5), "rmse": np.float64(3.0), "n": 7, "bad": math.inf, "worse": -math.inf}
    made = new_record(KEY, {"widths": (50, 50), "noise": None}, metrics, 1.5)
    records.append(made)
    (read,) = records.read("uci")
    assert read == made
    assert read.metrics == {"nll": 2.5, "rmse": 3.0, "n": 7.0, "bad": math.inf, "worse": -math.inf}
    assert read.settings == {"widths": [50, 50], "noise": None}
    assert read.seconds == 1.5
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", read.time)
    assert read.versions["richbll"] == richbll.__version__
    assert read.versions["torch"].startswith(torch.__version__.split("+")[0])
    (line,) = records.path("uci").read_text().splitlines()
    names = "experiment dataset method seed settings metrics seconds time commit versions"
    assert list(json.loads(line)) == names.split()


def test_nan_comes_back(records: Records) -> None:
    records.append(record(nll=math.nan))
    assert math.isnan(records.read("uci")[0].metrics["nll"])


def test_done_is_by_key_and_settings(records: Records) -> None:
    assert not records.done(KEY)
    records.append(record(width=50, layers=(1, 2)))
    assert records.done(KEY)
    assert records.done(KEY, {"width": 50})
    assert records.done(KEY, {"layers": (1, 2)})  # as given, though JSON reads it back as a list
    assert not records.done(KEY, {"width": 100})
    assert not records.done(KEY, {"depth": None})
    for other in (
        Key("uci", "boston", "rich_bll", 4),
        Key("uci", "boston", "bll", 3),
        Key("uci", "energy", "rich_bll", 3),
        Key("wheel", "boston", "rich_bll", 3),
    ):
        assert not records.done(other)


def test_done_sees_what_another_process_wrote(records: Records) -> None:
    records.append(record())
    assert not records.done(Key("uci", "boston", "bll", 0))
    Records(records.folder).append(record(Key("uci", "boston", "bll", 0)))
    assert records.done(Key("uci", "boston", "bll", 0))


def test_reading_by_experiment_and_settings(records: Records) -> None:
    assert records.read("uci") == ()
    assert records.experiments() == []
    records.append(record(width=50))
    records.append(record(width=100, nll=2.4))
    records.append(record(Key("wheel", "wheel_0.5", "bll", 0)))
    assert records.experiments() == ["uci", "wheel"]
    assert [r.metrics["nll"] for r in records.read("uci")] == [2.5, 2.4]
    assert [r.metrics["nll"] for r in records.read("uci", {"width": 100})] == [2.4]
    assert records.read("uci", {"width": 7}) == ()


def test_of_equal_key_and_settings_the_last_counts(records: Records) -> None:
    records.append(record(width=50, nll=1.0))
    records.append(record(width=50, nll=2.0))
    assert [r.metrics["nll"] for r in records.read("uci")] == [2.0]
    assert len(records.path("uci").read_text().splitlines()) == 2  # nothing is ever deleted


def test_resuming_after_a_kill(records: Records) -> None:
    keys = [Key("uci", "boston", "bll", seed) for seed in range(4)]
    for key in keys[:2]:
        records.append(record(key))
    path = records.path("uci")
    path.write_bytes(path.read_bytes()[:-30])  # killed while it wrote the second
    with pytest.warns(RichBLLWarning, match="skipped"):
        missing = [key for key in keys if not records.done(key)]
    assert missing == keys[1:]
    with pytest.warns(RichBLLWarning, match="removed"):
        records.append(record(missing[0]))
    for key in missing[1:]:
        records.append(record(key))
    assert [r.key for r in records.read("uci")] == keys


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: record(Key("../uci", "boston", "bll", 0)), r"named like a file.*not '\.\./uci'"),
        (lambda: record(Key("uci", "boston", "bll", 0.5)), "whole number, not 0.5"),
        (lambda: new_record(KEY, {}, {"nll": "low"}, 1.0), "not all numbers"),
        (lambda: new_record(KEY, {}, {"nll": torch.ones(2)}, 1.0), "not all numbers"),
        (lambda: record(net=torch.nn.Linear(1, 1)), "Settings must be what JSON can hold"),
        (lambda: record(noise=math.nan), "Settings must be what JSON can hold"),
    ],
)
def test_what_cannot_be_recorded(make, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        make()


def test_a_line_that_is_no_record(records: Records) -> None:
    records.append(record())
    with records.path("uci").open("a") as file:
        file.write('{"experiment": "uci"}\n')
    with pytest.raises(RecordError, match=r"uci.jsonl, line 2 is not a record \(KeyError: 'dataset'\)"):
        records.read("uci")


# ---------------------------------------------------------------------- the commit


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the package in it."""
    package = tmp_path / "project" / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(provenance, "_PACKAGE", package)
    git(package, "init", "-q", str(tmp_path / "project"))
    provenance.commit.cache_clear()
    yield package
    provenance.commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@x"]
    run = subprocess.run(["git", "-C", folder, *names, *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_commit_of_a_checkout(checkout: Path) -> None:
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "first")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD")
    provenance.commit.cache_clear()
    (checkout / "__init__.py").write_text("changed")
    assert provenance.commit() == git(checkout, "rev-parse", "HEAD") + "+changes"


def test_no_commit_of_a_copy_inside_another_repository(checkout: Path) -> None:
    (checkout.parent / "else").write_text("")
    git(checkout.parent, "add", "else")
    git(checkout.parent, "commit", "-qm", "theirs")
    assert provenance.commit() is None


def test_no_commit_without_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() is None
