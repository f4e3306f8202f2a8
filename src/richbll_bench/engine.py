"""Jobs side by side: joblib is the only parallel interface, on this machine or on a Ray cluster that is there already.

Records are appended by this process, job by job, so a run that is killed goes on where it was. A job that fails does
not stop the others; the run says at its end which ones failed.
"""

import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from tqdm import tqdm

from richbll.errors import RichBLLError, RichBLLWarning
from richbll_bench.errors import EngineError
from richbll_bench.experiment import Experiment, Job, Size, UnfinishedError
from richbll_bench.provenance import commit
from richbll_bench.records import Record, Records

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Ended:
    """A job and its records, and why there are not all of them."""

    job: Job
    made: Sequence[Record] = ()
    failure: str | None = None
    trace: str = ""


def missing(job: Job, records: Records) -> list[Job]:
    """The job for what is not on record under its settings: for every seed, the methods that it lacks."""
    lacking: dict[tuple[str, ...], list[int]] = {}
    for seed in job.seeds:
        methods = tuple(key.method for key in job.keys(seed) if not records.done(key, job.settings))
        lacking.setdefault(methods, []).append(seed)
    return [replace(job, methods=methods, seeds=tuple(seeds)) for methods, seeds in lacking.items() if methods]


def wanted(experiment: Experiment, size: Size) -> list[Job]:
    """All jobs, or those of some data sets and methods."""
    jobs = experiment.jobs(size)
    for what, names, known in (
        ("data set", size.datasets, {job.dataset for job in jobs}),
        ("method", size.methods, {method for job in jobs for method in job.methods}),
    ):
        if unknown := set(names) - known:
            have = ", ".join(sorted(known))
            raise EngineError(f"{experiment.name} has no {what} {sorted(unknown)[0]!r}; it has {have}.")
    if size.methods:
        jobs = [replace(job, methods=tuple(m for m in job.methods if m in size.methods)) for job in jobs]
    return [job for job in jobs if job.methods and (not size.datasets or job.dataset in size.datasets)]


def run(
    experiment: Experiment,
    size: Size,
    records: Records,
    *,
    num_jobs: int = 1,
    engine: str = "local",
    progress: bool | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run what is missing; returns how many records were added."""
    jobs = wanted(experiment, size)
    todo = sorted((part for job in jobs for part in missing(job, records)), key=lambda job: -job.cost * len(job.seeds))
    say(f"{experiment.name}: {len(todo)} jobs to run, {sum(len(job.seeds) for job in todo)} seeds")
    count, failed = 0, []
    disable = None if progress is None else not progress
    with tqdm(total=len(todo), desc=experiment.name, unit="job", disable=disable) as bar:
        for ended in _results(todo, num_jobs, engine):
            for record in ended.made:
                records.append(record)
            count += len(ended.made)
            bar.update()
            say(f"{ended.job.name}: {ended.failure or f'{len(ended.made)} records'}")
            if ended.failure is not None:
                failed.append(ended)
    if failed:
        raise EngineError(_failures(failed, len(todo)))
    return count


def _failures(failed: Sequence[Ended], count: int) -> str:
    kinds = {ended.failure for ended in failed}
    if len(kinds) == 1 and len(failed) == count and not failed[0].trace:
        return str(failed[0].failure)
    lines = [f"{ended.job.name}, seeds {', '.join(map(str, ended.job.seeds))}: {ended.failure}" for ended in failed]
    heading = f"{len(failed)} of {count} jobs failed; the records of the others are kept."
    return "\n".join([heading, *lines, failed[0].trace]).rstrip()


def _results(jobs: list[Job], num_jobs: int, engine: str) -> Iterator[Ended]:
    """As they come."""
    if not jobs:
        return
    if num_jobs == 1 and engine == "local":
        for job in jobs:
            yield _done(job)
        return
    from joblib import Parallel, delayed

    with _backend(engine):
        if engine == "local":
            parallel = Parallel(n_jobs=num_jobs, return_as="generator_unordered", batch_size=1, pre_dispatch="all")
            yield from parallel(delayed(_on_one_thread)(job) for job in jobs)
            return
        for start in range(0, len(jobs), num_jobs):  # Ray's backend gives all results at once, so a few jobs at a time
            some = jobs[start : start + num_jobs]
            yield from Parallel(n_jobs=num_jobs, batch_size=1)(delayed(_on_one_thread)(job) for job in some)


def _done(job: Job) -> Ended:
    commit()  # of now, as the job may take hours, in which the checkout may go on
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RichBLLWarning)  # what they are about is in the settings and on purpose
            return Ended(job, job.run(job))
    except UnfinishedError as error:
        return Ended(job, error.made, str(error), error.trace)
    except RichBLLError as error:  # says all that there is to say
        return Ended(job, failure=str(error))
    except Exception as error:
        return Ended(job, failure=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


def _on_one_thread(job: Job) -> Ended:
    """In a process of its own, beside others."""
    torch.set_num_threads(1)
    return _done(job)


@contextmanager
def _backend(engine: str) -> Iterator[None]:
    from joblib import parallel_config

    if engine == "ray":
        try:
            import ray
            from ray.util.joblib import register_ray
        except ModuleNotFoundError as error:
            raise EngineError("--engine ray needs ray: pip install 'richbll[ray]'") from error
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False)
            except ConnectionError as error:
                raise EngineError(
                    "--engine ray joins a Ray cluster that is running, and there is none: ray start --head"
                ) from error
        register_ray()  # type: ignore[no-untyped-call,unused-ignore]
    with parallel_config(backend="ray" if engine == "ray" else "loky"):
        yield
