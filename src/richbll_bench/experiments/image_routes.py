"""The exact transform beside the paper's route to it on the CNN: random projections of every image's whole gradient.

TRAK projects each gradient by a dense Gaussian matrix to q numbers. Here: what that does to NLL, to the variances and
to the AUROC by variance, and what either costs. All rows of a seed have one network and one subset of the images.
"""

import time
from collections.abc import Sequence

import torch

from richbll import RichBLL, Sketched
from richbll_bench import image_datasets
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.experiments.cifar import EPOCHS, SIZE, WIDTH, size_words, slug
from richbll_bench.images.evaluation import detection, of_probabilities
from richbll_bench.images.last_layer import fitting, predicting
from richbll_bench.images.running import by_settings, settings, task_of
from richbll_bench.images.task import Prediction, Task
from richbll_bench.records import Key, Record, new_record
from richbll_bench.tables import Column, Row, Table, ours

NAME = "image-routes"
EXACT, PLAIN = "exact", "plain"
SIZES, _TINY_SIZES = (512, 2048, 4096), (16, 64)


def route(name: str, task: Task) -> RichBLL:
    """The paper's posterior, its transform by one route; not fitted yet."""
    solver = Sketched("gaussian", int(name.partition("_")[2]), task.seed, rules=False) if "_" in name else EXACT
    return RichBLL(
        task.backbone.model,
        "classification",
        solver=solver,
        ridge=1.0,
        class_posterior="per_class",
        noise_variance=0.1,
        subsample=task.per_class,
        seed=task.seed,
        enrich=name != PLAIN,
        progress=False,
    )


def measured(name: str, task: Task, exact: dict[str, Prediction]) -> dict[str, float]:
    """What a route gives and costs; `exact` holds the exact route's predictions, or nothing yet."""
    uq = route(name, task)
    seconds, costs = fitting(uq, task)
    predict = predicting(uq, task)
    found = {one: predict(one) for one in ("test", *task.outside)}
    if name == EXACT:
        exact |= found
    metrics = of_probabilities(found["test"].log_probs, task.images("test").labels)
    for one in task.outside:
        told = detection(found["test"], one, {"variance": found[one].scores["variance"]})
        metrics |= {f"auroc_{one}": told[f"auroc_{one}_variance"], f"fpr95_{one}": told[f"fpr95_{one}_variance"]}
    truth, value = (torch.cat([p.scores["variance"] for p in some.values()]) for some in (exact, found))
    metrics["variance_error"] = float((value - truth).norm() / truth.norm())
    return metrics | costs | {"fit_seconds": seconds}


def run(job: Job) -> list[Record]:
    """The exact route first, since the others are compared with it."""
    records = []
    for seed in job.seeds:
        task = task_of(job, seed)
        exact: dict[str, Prediction] = {}
        reference: dict[str, float] = {}
        for name in sorted({EXACT, *job.methods}, key=lambda name: name != EXACT):
            began = time.perf_counter()
            metrics = measured(name, task, exact)
            reference = reference or metrics
            changes = {f"{one}_change": metrics[one] - reference[one] for one in ("nll", *_aurocs(task.outside))}
            seconds = time.perf_counter() - began
            key = Key(NAME, job.dataset, name, seed)
            records.append(new_record(key, job.settings, metrics | changes, seconds))
    return [record for record in records if record.key.method in job.methods]


def _aurocs(outside: Sequence[str]) -> list[str]:
    return [f"auroc_{name}" for name in outside]


def jobs(size: Size) -> list[Job]:
    """One for each seed, on the networks of `cifar`."""
    found = settings("cifar10", size, width=WIDTH, epochs=EPOCHS)
    names = (EXACT, *(f"trak_{q}" for q in (_TINY_SIZES if size.tiny else SIZES)), PLAIN)
    return [Job(NAME, "cifar10", names, (seed,), found, run) for seed in range(size.num_seeds)]


def tables(records: Sequence[Record]) -> list[Table]:
    """One for every size of network."""
    columns = [
        Column("nll", "NLL", "cifar10", "nll", decimals=4),
        Column("nll_change", "change", "cifar10", "nll_change", decimals=5),
    ]
    for name in ("svhn", "cifar100"):
        title = image_datasets.declaration(name).title
        columns += [
            Column(f"auroc_{name}", f"AUROC {title}", "cifar10", f"auroc_{name}", decimals=4),
            Column(f"auroc_{name}_change", "change", "cifar10", f"auroc_{name}_change", decimals=5),
        ]
    columns += [
        Column("variance_error", "error of variances", "cifar10", "variance_error", decimals=5),
        Column("fit_seconds", "fit, CPU s", "cifar10", "fit_seconds", decimals=1),
        Column("fit_yards", "fit, yards", "cifar10", "fit_yards", decimals=2),
        Column("fit_megabytes", "fit, MB", "cifar10", "fit_megabytes", decimals=0),
    ]
    made = []
    for size, found in by_settings(records, *SIZE).items():
        there = {record.key.method for record in found}
        sizes = sorted(int(name.partition("_")[2]) for name in there if "_" in name)
        titles = {EXACT: "exact", **{f"trak_{q}": f"TRAK, q = {q}" for q in sizes}, PLAIN: "no transform (BLL)"}
        rows = tuple(Row(name, title, 0, (None,) * len(columns)) for name, title in titles.items() if name in there)
        words = size_words("cifar10", size)
        made.append(
            ours(found, Table(f"{NAME}-{slug(words)}", f"{words}: routes to the transform", tuple(columns), rows))
        )
    return made


experiment = Experiment(
    name=NAME,
    title="Routes to the transform on the CNN",
    about="The exact transform beside TRAK's random projections: what changes, and what it costs.",
    num_seeds=3,
    jobs=jobs,
    tables=tables,
    takes=("width", "epochs", "images"),
)
