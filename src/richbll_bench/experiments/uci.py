"""The paper's table of test NLL on five UCI data sets, all methods on the same splits."""

from collections.abc import Sequence
from dataclasses import replace

from richbll_bench import datasets, methods
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Record
from richbll_bench.regression.running import on_test_rows, records_of
from richbll_bench.tables import Column, Row, Table, beside, comparison, comparison_tables, ours
from richbll_bench.tables.table import Better

DATASETS = ("boston", "concrete", "energy", "power", "wine_red")
_GRID = ("map_grid", "bll_grid", "rich_bll_grid", "rich_bll_s_grid")
_ON_BACKBONES = ("map", "bll", "rich_bll", "rich_bll_s", "rich_bll_wide", "laplace_last_layer", *_GRID)
_SMALL, _MOST_ROWS = ("ntk_gp",), 2500  # where the kernel fits
_TRAINED = ("vbll", "rbf_gp", "dropout", "dropout_last_layer", "ensemble", "swag", "bbb")
_MORE: tuple[tuple[str, str, Better | None, int], ...] = (
    ("rmse", "Root mean squared error", "lower", 3),
    ("crps", "Continuous ranked probability score", "lower", 3),
    ("coverage_90", "Share of test targets in the 90 % interval", None, 3),
    (
        "fit_seconds",
        "Seconds to fit: on a trained backbone, or with the training of the method's own networks",
        None,
        3,
    ),
    ("predict_seconds", "Seconds to predict all test rows", None, 5),
)
_COMPARED = (("rich_bll", "bll"), ("rich_bll_s", "bll"), ("rich_bll", "map"))
_COST = {"boston": 36, "concrete": 70, "energy": 36, "power": 300, "wine_red": 36}  # thousands of steps


def run(job: Job) -> list[Record]:
    """Fit every method for all seeds, and score it on the test rows."""
    return records_of(job, methods.load, on_test_rows)


def _jobs(size: Size) -> list[Job]:
    wanted = size.datasets or (DATASETS[:1] if size.tiny else DATASETS)
    seeds, settings = tuple(range(size.num_seeds)), {"tiny": size.tiny}
    groups = [(_ON_BACKBONES, 1.0), (_SMALL, 0.3), *(((name,), 1.0) for name in _TRAINED if name in methods.names())]
    return [
        Job("uci", dataset, names, seeds, settings, run, cost * _COST.get(dataset, 36))
        for dataset in wanted
        for names, cost in groups
        if names != _SMALL or len(datasets.load(dataset).y) <= _MOST_ROWS
    ]


def _rows() -> list[Row]:
    """Methods that the paper's table does not have."""
    listed = {row.name for row in paper_table("uci_nll").rows}
    names = [name for name in (*_ON_BACKBONES, *_SMALL, *_TRAINED) if name not in listed]
    return [Row(name, methods.load(name).title, 3) for name in names if name.removesuffix("_grid") in methods.names()]


def _tables(records: Sequence[Record]) -> list[Table]:
    paper = paper_table("uci_nll")
    others = [name for name in dict.fromkeys(record.key.dataset for record in records) if name not in DATASETS]
    pairs = [
        comparison(records, first, second, dataset=dataset, metric="nll")
        for first, second in _COMPARED
        for dataset in (*DATASETS, *sorted(others))
    ]
    first, there = beside(ours(records, paper, extra=_rows()), paper), {record.key.method for record in records}
    sources = tuple(f"{methods.load(n).title}: {methods.load(n).source}" for n in methods.names() if n in there)
    found = [replace(first, notes=(*first.notes, *sources))]
    if others:  # data sets that the paper does not have
        columns = tuple(replace(paper.columns[0], name=name, title=name, dataset=name) for name in sorted(others))
        found.append(_of_columns(records, paper, "uci_others", "Other data sets, test NLL", columns))
    found += comparison_tables(pairs)
    for metric, title, better, decimals in _MORE:
        columns = tuple(replace(c, metric=metric, better=better, decimals=decimals) for c in paper.columns)
        found.append(_of_columns(records, paper, f"uci_{metric}", title, columns))
    return found


def _of_columns(records: Sequence[Record], like: Table, name: str, title: str, columns: tuple[Column, ...]) -> Table:
    """All methods in other columns than the paper's."""
    rows = tuple(replace(row, cells=(None,) * len(columns)) for row in like.rows)
    return ours(records, replace(like, name=name, title=title, columns=columns, rows=rows), extra=_rows())


experiment = Experiment(
    "uci",
    "UCI regression",
    "Five data sets, 20 random splits each, 2 × 50 ReLU networks in μP; test NLL in the targets' own units.",
    20,
    _jobs,
    _tables,
)
