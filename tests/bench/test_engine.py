"""Jobs: passed over when their records are there, run side by side, on this machine or on Ray."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from richbll_bench.engine import missing, run
from richbll_bench.errors import EngineError, MissingDatasetError
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.records import Key, Record, Records, new_record


def work(job: Job) -> list[Record]:
    """Settings say how long it takes, and whether it fails."""
    time.sleep(job.settings.get("sleep", 0.0))
    if kind := job.settings.get("fails"):
        raise {"ValueError": ValueError, "MissingDatasetError": MissingDatasetError}[kind]("this job fails")
    return [
        new_record(key, job.settings, {"value": seed, "process": os.getpid()}, seconds=1.0)
        for seed in job.seeds
        for key in job.keys(seed)
    ]


def jobs(size: Size) -> list[Job]:
    return [
        Job("made-up", name, ("a", "b"), tuple(range(size.num_seeds)), {"tiny": size.tiny}, work)
        for name in ("one", "two", "three", "four")
    ]


MADE_UP = Experiment("made-up", "Made up", "For tests.", 2, jobs)


def values(records: Records) -> set[tuple[str, str, int, float]]:
    return {(r.key.dataset, r.key.method, r.key.seed, r.metrics["value"]) for r in records.read("made-up")}


def test_what_is_on_record_is_not_run_again(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert run(MADE_UP, Size(2), records, progress=False) == 16
    assert run(MADE_UP, Size(2), records, progress=False) == 0
    assert run(MADE_UP, Size(3), records, progress=False) == 8  # the third seed alone
    assert run(MADE_UP, Size(2, tiny=True), records, progress=False) == 16  # other settings


def test_only_some_data_sets(tmp_path: Path) -> None:
    assert run(MADE_UP, Size(1, datasets=("two",)), Records(tmp_path), progress=False) == 2
    with pytest.raises(EngineError, match=r"no data set 'six'; it has four, one, three, two"):
        run(MADE_UP, Size(1, datasets=("six",)), Records(tmp_path), progress=False)


def test_only_some_methods(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert run(MADE_UP, Size(1, methods=("b",)), records, progress=False) == 4
    assert {method for _, method, *_ in values(records)} == {"b"}
    with pytest.raises(EngineError, match="no method 'c'; it has a, b"):
        run(MADE_UP, Size(1, methods=("c",)), records, progress=False)


def test_of_a_seed_only_the_missing_methods_are_run(tmp_path: Path) -> None:
    records, job = Records(tmp_path), jobs(Size(3))[0]
    records.append(new_record(Key("made-up", "one", "a", 0), job.settings, {"value": 0}, 1.0))
    for method in ("a", "b"):
        records.append(new_record(Key("made-up", "one", method, 1), job.settings, {"value": 1}, 1.0))
    assert [(part.methods, part.seeds) for part in missing(job, records)] == [(("b",), (0,)), (("a", "b"), (2,))]
    assert run(MADE_UP, Size(3, datasets=("one",)), records, progress=False) == 3
    assert len(records.path("made-up").read_text().splitlines()) == 6


def test_side_by_side_the_records_are_the_same(tmp_path: Path) -> None:
    one, two = Records(tmp_path / "one"), Records(tmp_path / "two")
    run(MADE_UP, Size(2), one, progress=False)
    run(MADE_UP, Size(2), two, num_jobs=2, progress=False)
    assert values(one) == values(two)
    assert os.getpid() not in {record.metrics["process"] for record in two.read("made-up")}


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_a_job_that_fails_does_not_stop_the_others(tmp_path: Path, num_jobs: int) -> None:
    def some(size: Size) -> list[Job]:
        bad, good, last = jobs(size)[:3]
        return [replace(bad, settings={"fails": "ValueError"}, cost=9.0), good, last]

    records = Records(tmp_path)
    with pytest.raises(EngineError, match=r"1 of 3 jobs failed(.|\n)*one: a, b, seeds 0: ValueError: (.|\n)*in work"):
        run(Experiment("made-up", "", "", 1, some), Size(1), records, num_jobs=num_jobs, progress=False)
    assert {dataset for dataset, *_ in values(records)} == {"two", "three"}


def test_where_all_fail_for_one_reason_it_is_said_once(tmp_path: Path) -> None:
    def some(size: Size) -> list[Job]:
        return [replace(job, settings={"fails": "MissingDatasetError"}) for job in jobs(size)]

    with pytest.raises(EngineError, match=r"^this job fails$"):
        run(Experiment("made-up", "", "", 1, some), Size(1), Records(tmp_path), progress=False)


KILLED = """
import sys
from pathlib import Path
from tests.bench.test_engine import *
def slow(size):
    return [Job(j.experiment, j.dataset, j.methods, j.seeds, {"sleep": 0.4}, work) for j in jobs(size)]
run(Experiment("made-up", "", "", 1, slow), Size(1), Records(Path(sys.argv[1])), progress=False)
"""


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    records = Records(tmp_path)
    while process.poll() is None and len(records.read("made-up")) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(records.read("made-up"))
    assert 0 < before < 8
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
    assert len(records.read("made-up")) == 8
    assert len(records.path("made-up").read_text().splitlines()) == 8  # nothing was done twice


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(
        num_cpus=2,
        log_to_driver=False,
        include_dashboard=False,
        object_store_memory=10**8,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}},
    )
    yield
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_on_ray_the_records_are_the_same(tmp_path: Path, cluster: None) -> None:
    here, there = Records(tmp_path / "here"), Records(tmp_path / "there")
    run(MADE_UP, Size(2), here, progress=False)
    run(MADE_UP, Size(2), there, num_jobs=2, engine="ray", progress=False)
    assert values(here) == values(there)
    assert os.getpid() not in {record.metrics["process"] for record in there.read("made-up")}
