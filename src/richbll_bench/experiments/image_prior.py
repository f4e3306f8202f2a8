"""Why rich and plain differ on images, or do not: both as the prior's scale τ² and the ridge of the transform vary.

One fit of each posterior is enough for all of it, as neither number needs the data again. τ² beside a fixed σ² decides
how much the prior counts; how unsure the logits are is a factor of all variances, which the validation labels choose
for every τ². What they would choose of all is marked in the table; test images and images of other kinds are shown for
it, and choose nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from richbll_bench.tables import Cell, Column, Row, Table, comparison, comparison_tables, summary
from richbll_bench.tables.table import Better

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAME = "image-prior"
SCALES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
RIDGES = (1e-2, 1.0, 1e2, 1e4)
POSTERIORS = ("bll", "rich_bll_s", "rich_bll_s_class", "rich_bll_ggn")
_RIDGED = "rich_bll_s"  # at every ridge; the others at the paper's
_COLORS = {"bll": "#c9820f", "rich_bll_s": "#2a6fbb", "rich_bll_s_class": "#3c9d92", "rich_bll_ggn": "#b5442e"}


@dataclass(frozen=True)
class Point:
    """A posterior, its prior's scale and its ridge; its name is the method's in records."""

    posterior: str
    scale: float
    ridge: float

    @property
    def name(self) -> str:
        """What `read` reads."""
        return f"{self.posterior}:{self.scale:g}:{self.ridge:g}"

    @classmethod
    def read(cls, name: str) -> "Point":
        """From a record's method."""
        posterior, scale, ridge = name.split(":")
        return cls(posterior, float(scale), float(ridge))


def points(tiny: bool) -> list[Point]:
    """All that is tried."""
    scales = SCALES[2::4] if tiny else SCALES
    ridges = {name: (1.0,) for name in POSTERIORS} | {_RIDGED: RIDGES[1:3] if tiny else RIDGES}
    return [Point(name, scale, ridge) for name in POSTERIORS for ridge in ridges[name] for scale in scales]


def measured(task: Task, wanted: Sequence[Point]) -> dict[str, dict[str, float]]:
    """By name; each posterior is fitted once."""
    found = {}
    for posterior in dict.fromkeys(point.posterior for point in wanted):
        method = methods.load(posterior)
        assert isinstance(method, LastLayer)
        uq = method.posterior(task).fit(task.loader("train"))
        for point in (point for point in wanted if point.posterior == posterior):
            uq.ridge, uq.prior_variance = point.ridge, point.scale
            found[point.name] = scaled.measured(uq, task)
    return found


def run(job: Job) -> list[Record]:
    """All points of every seed."""
    records = []
    for seed in job.seeds:
        began = time.perf_counter()
        found = measured(task_of(job, seed), [Point.read(name) for name in job.methods])
        seconds = (time.perf_counter() - began) / len(found)
        for name, metrics in found.items():
            records.append(new_record(Key(NAME, job.dataset, name, seed), job.settings, metrics, seconds))
    return records


def jobs(size: Size) -> list[Job]:
    """One for each seed, on the networks of `cifar`."""
    found = settings("cifar10", size, width=WIDTH, epochs=EPOCHS)
    names = tuple(point.name for point in points(size.tiny))
    return [Job(NAME, "cifar10", names, (seed,), found, run) for seed in range(size.num_seeds)]


# ---------------------------------------------------------------------- tables and figures


def tables(records: Sequence[Record]) -> list[Table]:
    """The scale that validation labels choose for every posterior and ridge, the paper's beside it; rich − plain."""
    made = []
    for size, found in by_settings(records, *SIZE).items():
        words = size_words("cifar10", size)
        made += [_table(found, words), *_pairs(found, words)]
    return made


def _pairs(found: Sequence[Record], words: str) -> list[Table]:
    """Rich − plain at every scale, seed by seed."""
    scales = sorted({Point.read(record.key.method).scale for record in found})
    better: dict[str, Better] = {"nll": "lower", "ece": "lower"}
    better |= {f"auroc_{name}_{score}": "higher" for name in OUTSIDE["cifar10"] for score in scaled.SCORES}
    pairs = [
        comparison(
            found,
            Point(_RIDGED, scale, 1.0).name,
            Point("bll", scale, 1.0).name,
            dataset="cifar10",
            metric=metric,
            better=which,
        )
        for scale in scales
        for metric, which in better.items()
    ]
    title = f"{words}: rich − plain at every prior variance, variances tuned"
    return [replace(table, name=f"{NAME}-paired-{slug(words)}", title=title) for table in comparison_tables(pairs)]


def _table(found: Sequence[Record], words: str) -> Table:
    columns = [
        Column("nll_validation", "NLL, validation", metric="nll_validation", decimals=4),
        Column("nll", "NLL", metric="nll", decimals=4),
        Column("ece", "ECE", metric="ece", decimals=4),
        Column("nll_before", "NLL, factor 1", metric="nll_before", decimals=4),
        Column("ece_before", "ECE, factor 1", metric="ece_before", decimals=4),
        Column("factor", "factor", metric="factor", decimals=1),
        *(
            Column(f"{name}_{score}", f"{_title(name)} by {score.replace('_', ' ')}", metric=f"auroc_{name}_{score}")
            for name in OUTSIDE["cifar10"]
            for score in scaled.SCORES
        ),
        Column("variance", "mean variance, factor 1", metric="variance", decimals=5),
    ]
    rows = []
    there = [Point.read(name) for name in dict.fromkeys(record.key.method for record in found)]
    for block, (posterior, ridge) in enumerate(dict.fromkeys((p.posterior, p.ridge) for p in there)):
        mine = [point for point in there if (point.posterior, point.ridge) == (posterior, ridge)]
        best = min(mine, key=lambda point: _value(found, point, "nll_validation"))
        for point in dict.fromkeys([best, *(point for point in mine if point.scale == 1)]):
            why = ", chosen" if point == best else ""
            rows.append(
                Row(
                    point.name,
                    f"{_posterior_title(posterior, ridge)}, τ² = {point.scale:g}{why}",
                    block,
                    tuple(_cell(found, point, column.metric) for column in columns),
                )
            )
    notes = (
        "Variances are multiplied by the factor that validation labels choose, but in the columns of factor 1.",
        "Chosen: the τ² of the least NLL of validation labels, mean over seeds; beside it the paper's, 1.",
    )
    return Table(f"{NAME}-chosen-{slug(words)}", f"{words}: prior scale and ridge", tuple(columns), tuple(rows), notes)


def _posterior_title(posterior: str, ridge: float) -> str:
    title = methods.load(posterior).title
    return title if posterior == "bll" else f"{title}, ridge {ridge:g}"  # it has none


def _title(name: str) -> str:
    return image_datasets.declaration(name).title


def _values(found: Sequence[Record], point: Point, metric: str) -> list[float]:
    return [record.metrics[metric] for record in found if record.key.method == point.name and metric in record.metrics]


def _value(found: Sequence[Record], point: Point, metric: str) -> float:
    values = _values(found, point, metric)
    return sum(values) / len(values)


def _cell(found: Sequence[Record], point: Point, metric: str) -> Cell | None:
    values = _values(found, point, metric)
    return summary(values) if values else None


def figures(records: Sequence[Record]) -> list[Figure]:
    """One for every size of network."""
    caption = (
        "Against the prior's scale: NLL of test labels, variances times a factor that validation labels choose, "
        "and AUROC by the predicted class's variance. Ridge 1 for all, "
        "other ridges of Rich-BLL (S) thin. Where curves of rich and plain meet, the data has outweighed the prior."
    )
    return [
        Figure(
            f"{NAME}-{slug(size_words('cifar10', size))}",
            f"{size_words('cifar10', size)}: prior scale",
            caption,
            partial(drawn, some),
        )
        for size, some in by_settings(records, *SIZE).items()
    ]


def drawn(found: Sequence[Record]) -> "Drawing":
    """NLL, then AUROC of each set of other images."""
    from matplotlib.figure import Figure as Drawing

    panels = {"nll": "NLL"} | {f"auroc_{name}_variance": f"AUROC {_title(name)}" for name in OUTSIDE["cifar10"]}
    figure = Drawing(figsize=(3.2 * len(panels), 3.0), layout="constrained")
    there = [Point.read(name) for name in dict.fromkeys(record.key.method for record in found)]
    for ax, (metric, title) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for posterior, ridge in dict.fromkeys((p.posterior, p.ridge) for p in there):
            mine = sorted((p for p in there if (p.posterior, p.ridge) == (posterior, ridge)), key=lambda p: p.scale)
            values = [_value(found, point, metric) for point in mine]
            usual = ridge == 1
            label = methods.load(posterior).title if usual else None
            scales = [point.scale for point in mine]
            ax.plot(scales, values, color=_COLORS[posterior], lw=1.8 if usual else 0.7, label=label)
        ax.set(xscale="log", xlabel="prior variance τ²", title=title)
    if ax.get_legend_handles_labels()[0]:  # there may be other ridges alone
        ax.legend(fontsize=7)
    return figure


experiment = Experiment(
    name=NAME,
    title="Prior scale and ridge on images",
    about="Where Rich-BLL and BLL differ on the CNN, and what validation labels would choose.",
    num_seeds=3,
    jobs=jobs,
    tables=tables,
    figures=figures,
    takes=("width", "epochs", "images"),
)
