"""How many images it takes for the prior to be forgotten: Rich-BLL (S) beside BLL, made of fewer images of each class.

With many more images of each class than the last layer has features, the data outweighs a prior of variance 1, and rich
and plain are one. Here their number falls below that of the features, on the network of all images; the few stand for
all, each with as much more weight. τ², noise and ridge are the paper's; how unsure the logits are is once as it is, and
once a factor of all variances that the validation labels choose.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from richbll_bench import image_datasets
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.experiments.cifar import EPOCHS, SIZE, WIDTH, size_words, slug
from richbll_bench.images import methods, scaled
from richbll_bench.images.last_layer import LastLayer
from richbll_bench.images.running import by_settings, settings, task_of
from richbll_bench.images.task import OUTSIDE, Task
from richbll_bench.records import Key, Record, new_record
from richbll_bench.tables import Column, Row, Table, ours

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAME = "image-rows"
COUNTS, _TINY_COUNTS = (16, 32, 64, 128, 256, 1024), (4, 12)
_SCORES = {"variance": "variance", "relative_variance": "relative variance", "entropy": "tuned entropy"}
_NOTES = (
    "Tuned: all variances times the factor that the validation labels choose.",
    "The few images stand for all: each of them has the weight of many.",
)
POSTERIORS = {"bll": "#c9820f", "rich_bll_s": "#2a6fbb"}


def read(name: str) -> tuple[str, int]:
    """Posterior and images of each class, from a record's method (its setting `per_class` is that of `cifar`)."""
    posterior, count = name.split(":")
    return posterior, int(count)


def measured(name: str, task: Task) -> dict[str, float]:
    """One posterior of so many images of each class."""
    posterior, count = read(name)
    for images in ("test", "validation", *task.outside):
        task.seen(images)  # once for all
    fewer = task.of_fewer(count)
    method = methods.load(posterior)
    assert isinstance(method, LastLayer)
    return scaled.measured(method.posterior(fewer).fit(fewer.loader("train")), fewer)


def run(job: Job) -> list[Record]:
    """All posteriors of every seed."""
    records = []
    for seed in job.seeds:
        task = task_of(job, seed)
        for name in job.methods:
            began = time.perf_counter()
            metrics = measured(name, task)
            key = Key(NAME, job.dataset, name, seed)
            records.append(new_record(key, job.settings, metrics, time.perf_counter() - began))
    return records


def jobs(size: Size) -> list[Job]:
    """One for each seed, on the networks of `cifar`."""
    found = settings("cifar10", size, width=WIDTH, epochs=EPOCHS)
    counts = _TINY_COUNTS if size.tiny else COUNTS
    names = tuple(f"{posterior}:{count}" for count in counts for posterior in POSTERIORS)
    return [Job(NAME, "cifar10", names, (seed,), found, run) for seed in range(size.num_seeds)]


def tables(records: Sequence[Record]) -> list[Table]:
    """One for every size of network."""
    columns = [
        Column("accuracy_before", "accuracy", "cifar10", "accuracy_before", "higher"),
        Column("nll_before", "NLL", "cifar10", "nll_before", "lower", decimals=4),
        Column("ece_before", "ECE", "cifar10", "ece_before", "lower", decimals=4),
        Column("accuracy", "accuracy, tuned", "cifar10", "accuracy", "higher"),
        Column("nll", "NLL, tuned", "cifar10", "nll", "lower", decimals=4),
        Column("ece", "ECE, tuned", "cifar10", "ece", "lower", decimals=4),
        Column("factor", "factor", "cifar10", "factor"),
        *(
            Column(f"{name}_{score}", f"{_title(name)} by {words}", "cifar10", f"auroc_{name}_{score}", "higher")
            for name in OUTSIDE["cifar10"]
            for score, words in _SCORES.items()
        ),
    ]
    made = []
    for size, found in by_settings(records, *SIZE).items():
        there = {record.key.method for record in found}
        rows = []
        for block, (count, posterior) in enumerate(sorted((read(name)[1], read(name)[0]) for name in there)):
            title = f"{count:,} images of each class, {methods.load(posterior).title}"
            rows.append(Row(f"{posterior}:{count}", title, block // len(POSTERIORS), (None,) * len(columns)))
        words = size_words("cifar10", size)
        shape = Table(f"{NAME}-{slug(words)}", f"{words}: images of each class", tuple(columns), tuple(rows))
        table = ours(found, shape)
        made.append(replace(table, notes=(*table.notes, *_NOTES)))
    return made


def _title(name: str) -> str:
    return image_datasets.declaration(name).title


def figures(records: Sequence[Record]) -> list[Figure]:
    """One for every size of network."""
    caption = (
        "Means over seeds against the images of each class that the posterior is made of: NLL with tuned variances, "
        "AUROC by the relative variance."
    )
    made = []
    for size, found in by_settings(records, *SIZE).items():
        words = size_words("cifar10", size)
        title = f"{words}: images of each class"
        made.append(Figure(f"{NAME}-{slug(words)}", title, caption, partial(drawn, found)))
    return made


def drawn(found: Sequence[Record]) -> "Drawing":
    """NLL, then AUROC of each set of other images by the relative variance."""
    from matplotlib.figure import Figure as Drawing

    panels = {"nll": "NLL"} | {
        f"auroc_{name}_relative_variance": f"AUROC {_title(name)}" for name in OUTSIDE["cifar10"]
    }
    figure = Drawing(figsize=(3.2 * len(panels), 3.0), layout="constrained")
    counts = sorted({read(record.key.method)[1] for record in found})
    for ax, (metric, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for posterior, color in POSTERIORS.items():
            means = []
            for count in counts:
                values = [r.metrics[metric] for r in found if r.key.method == f"{posterior}:{count}"]
                means.append(sum(values) / len(values) if values else float("nan"))
            ax.plot(counts, means, color=color, marker="o", ms=3, label=methods.load(posterior).title)
        ax.set(xscale="log", xlabel="images of each class", title=title)
    ax.legend(fontsize=7)
    return figure


experiment = Experiment(
    name=NAME,
    title="Images of each class",
    about="Rich-BLL (S) and BLL on the CNN with fewer images of each class: where the prior begins to count.",
    num_seeds=3,
    jobs=jobs,
    tables=tables,
    figures=figures,
    takes=("width", "epochs", "images"),
)
