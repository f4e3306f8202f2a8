"""A job of regression: every method fitted for all seeds, and scored seed by seed."""

import time
from collections.abc import Callable, Mapping

from richbll_bench.experiment import Job
from richbll_bench.records import Key, Record, new_record
from richbll_bench.regression.backbones import Setting, setting
from richbll_bench.regression.split import Split
from richbll_bench.regression.task import Fitted, Method, Task, scores

Score = Callable[[Fitted, Split], Mapping[str, float]]


def records_of(job: Job, method: Callable[[str], Method], score: Score, wanted: Setting | None = None) -> list[Record]:
    """What the methods of a job leave; its seconds are those of the method, shared among the seeds."""
    tiny = bool(job.settings["tiny"])
    task = Task(wanted or setting(job.dataset, tiny), job.seeds, tiny)
    found = []
    for name in job.methods:
        began = time.perf_counter()
        fitted = method(name).fit(task)
        seconds = (time.perf_counter() - began) / len(job.seeds)
        for seed, part, one in zip(job.seeds, task.splits, fitted, strict=True):
            key = Key(job.experiment, job.dataset, name, seed)
            found.append(new_record(key, job.settings, score(one, part), seconds))
    return found


def on_test_rows(fitted: Fitted, part: Split) -> Mapping[str, float]:
    """All scores of the test rows."""
    return scores(fitted, part.test)
