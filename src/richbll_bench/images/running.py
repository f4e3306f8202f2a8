"""Jobs of images: every method of a seed on the network that they share, or on networks of its own."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from richbll_bench.errors import DatasetError
from richbll_bench.experiment import Job, Size, UnfinishedError
from richbll_bench.images import methods
from richbll_bench.images.backbones import Setting
from richbll_bench.images.task import Fitted, Method, Task
from richbll_bench.records import Key, Record, new_record

TINY = {"width": 4, "epochs": 2, "num_images": 200, "num_test": 30, "precision": "float32"}
_PER_CLASS, _TINY_PER_CLASS = 1024, 12
Evaluate = Callable[[Fitted, Task, Method], Mapping[str, float]]


def settings(dataset: str, size: Size, *, width: int, epochs: int) -> dict[str, Any]:
    """All that the numbers depend on, with data set, method and seed; as the command was given it, or tiny."""
    wanted = Setting(dataset, size.width or width, size.epochs or epochs, size.images)
    found = asdict(wanted) | (TINY if size.tiny else {}) | {"per_class": _TINY_PER_CLASS if size.tiny else _PER_CLASS}
    return {name: value for name, value in found.items() if name != "dataset"}


def task_of(job: Job, seed: int) -> Task:
    """What the methods of a job are given."""
    given = dict(job.settings)
    per_class = given.pop("per_class")
    return Task(Setting(job.dataset, **given), seed, per_class)


def records_of(job: Job, evaluate: Evaluate) -> list[Record]:
    """A record's seconds are the wall clock's for fitting and evaluating, and for training networks of its own.

    Training the network that methods share counts once, with MAP, whenever it was. A method that fails leaves the
    records of the others.
    """
    made: list[Record] = []
    failed: list[str] = []
    trace = ""
    for seed in job.seeds:
        task = task_of(job, seed)
        for name in job.methods:
            method = methods.load(name)
            try:
                training = 0.0 if method.own_networks else task.backbone.seconds
                began = time.perf_counter()
                metrics = evaluate(method.fit(task), task, method)
            except DatasetError:
                raise  # no method has its images
            except Exception as error:
                failed.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
                trace = trace or traceback.format_exc()
                continue
            seconds = time.perf_counter() - began + (training if name == "map" else 0.0)
            made.append(new_record(Key(job.experiment, job.dataset, name, seed), job.settings, metrics, seconds))
    if failed:
        raise UnfinishedError("; ".join(failed), made, trace)
    return made


def by_settings(records: Sequence[Record], *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Records that may stand in one table: those of one width, one number of epochs, and so on."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record.settings.get(name) for name in names), []).append(record)
    return found
