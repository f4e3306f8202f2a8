"""Beyond the paper: Rich-BLL against BLL as the number of rows grows from half of the features to all there are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from richbll_bench import datasets, methods
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.records import Record
from richbll_bench.regression.backbones import setting
from richbll_bench.regression.running import on_test_rows, records_of
from richbll_bench.tables import Cell, Column, Row, Table, comparison, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

DATASETS = ("boston", "concrete", "energy", "wine_red")
NUM_FEATURES = 51
FACTORS = (0.5, 1, 2, 4, 8, 16)  # rows for each feature
METHODS = ("map", "bll", "rich_bll", "ntk_gp")
_COLOURS = dict(zip(METHODS, ("0.5", "tab:blue", "tab:orange", "tab:green"), strict=True))


def run(job: Job) -> list[Record]:
    """Networks that were trained on so many rows, and posteriors from the same rows."""
    wanted = replace(setting(job.dataset, job.settings["tiny"]), num_seen=job.settings["rows"])
    return records_of(job, methods.load, on_test_rows, wanted)


def _rows(dataset: str, tiny: bool) -> list[int]:
    """How many rows are tried, all of them last."""
    everything = round(0.9 * (120 if tiny else len(datasets.load(dataset).y)))
    fractions = [round(factor * NUM_FEATURES) for factor in (FACTORS[:1] if tiny else FACTORS)]
    return [count for count in fractions if count < everything] + [everything]


def _jobs(size: Size) -> list[Job]:
    seeds = tuple(range(size.num_seeds))
    return [
        Job("data-size", dataset, METHODS, seeds, {"tiny": size.tiny, "rows": rows}, run, cost=rows)
        for dataset in (DATASETS[:1] if size.tiny else DATASETS)
        for rows in _rows(dataset, size.tiny)
    ]


def _at(records: Sequence[Record], dataset: str, rows: int) -> list[Record]:
    return [record for record in records if record.key.dataset == dataset and record.settings["rows"] == rows]


def _mean(records: Sequence[Record], method: str, metric: str) -> Cell | None:
    values = [record.metrics[metric] for record in records if record.key.method == method]
    return summary(values) if values else None


def _tables(records: Sequence[Record]) -> list[Table]:
    columns = [
        Column(method, methods.load(method).title, metric="nll", better="lower", decimals=3) for method in METHODS
    ]
    columns += [Column("difference", "Rich-BLL − BLL", decimals=4), Column("wins", "wins of Rich-BLL")]
    columns += [
        Column(f"cover/{method}", f"90 % cover, {title}")
        for method, title in (("bll", "BLL"), ("rich_bll", "Rich-BLL"))
    ]
    rows = []
    for number, dataset in enumerate(dict.fromkeys(record.key.dataset for record in records)):
        for count in sorted({r.settings["rows"] for r in records if r.key.dataset == dataset}):
            some = _at(records, dataset, count)
            pair = comparison(some, "rich_bll", "bll", dataset=dataset, metric="nll")
            cells = [_mean(some, method, "nll") for method in METHODS]
            cells += [Cell(pair.mean, pair.error, pair.num_splits) if pair else None]
            cells += [Cell(text=f"{pair.wins} of {pair.num_splits}") if pair else None]
            cells += [_mean(some, method, "coverage_90") for method in ("bll", "rich_bll")]
            rows.append(Row(f"{dataset}/{count}", f"{dataset}, {count} rows", number, tuple(cells)))
    return [Table("data_size", "Test NLL by the number of rows", tuple(columns), tuple(rows))]


def _figures(records: Sequence[Record]) -> list[Figure]:
    caption = "Mean over seeds; bars are standard errors. The dashed line is where there are as many rows as features."
    return [Figure("data_size", "Test NLL by the number of rows", caption, lambda: _draw(records))]


def _draw(records: Sequence[Record]) -> "Drawing":
    from matplotlib.figure import Figure as Drawing

    names = list(dict.fromkeys(record.key.dataset for record in records))
    figure = Drawing(figsize=(3 * len(names), 3), layout="constrained")
    for axes, dataset in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        counts = sorted({r.settings["rows"] for r in records if r.key.dataset == dataset})
        for method in METHODS:
            cells = [(count, _mean(_at(records, dataset, count), method, "nll")) for count in counts]
            points = [(count, cell.mean, cell.error or 0.0) for count, cell in cells if cell is not None]
            if not points:
                continue
            axes.errorbar(
                *zip(*points, strict=True),
                label=methods.load(method).title,
                color=_COLOURS[method],
                marker="o",
                markersize=3,
                capsize=2,
            )
        axes.axvline(NUM_FEATURES, color="0.7", linestyle="--", linewidth=0.8)
        axes.set(xscale="log", xlabel="training rows", title=dataset)
    figure.axes[0].set_ylabel("test NLL")
    figure.axes[-1].legend(frameon=False, fontsize=8)
    return figure


experiment = Experiment(
    "data-size",
    "Rich against plain as the data grows",
    "Networks trained on few rows and on many, and posteriors from the same rows. With few rows the prior matters.",
    10,
    _jobs,
    _tables,
    _figures,
)
