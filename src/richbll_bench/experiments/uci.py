"""The paper's table of test NLL on five UCI data sets, all methods on the same splits."""

from collections.abc import Sequence
from dataclasses import replace

from richbll_bench import datasets, methods
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Record
from richbll_bench.regression.running import on_test_rows, records_of
from richbll_bench.tables import Row, Table, beside, comparison, comparison_table, ours

DATASETS = ("boston", "concrete", "energy", "power", "wine_red")
_GRID = ("map_grid", "bll_grid", "rich_bll_grid", "rich_bll_s_grid")
_ON_BACKBONES = ("map", "bll", "rich_bll", "rich_bll_s", "rich_bll_wide", "laplace_last_layer", *_GRID)
_SMALL, _MOST_ROWS = ("ntk_gp",), 2500  # where the kernel fits
_TRAINED = ("vbll", "rbf_gp", "dropout", "dropout_last_layer", "ensemble", "swag", "bbb")
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


def _tables(records: Sequence[Record]) -> list[Table]:
    paper = paper_table("uci_nll")
    others = tuple(dict.fromkeys(r.key.dataset for r in records if r.key.dataset not in DATASETS))
    extra = [Row(name, methods.load(name).title, 3) for name in (*_ON_BACKBONES, *_SMALL, *_TRAINED) if _known(name)]
    listed = {row.name for row in paper.rows}
    table = ours(records, paper, extra=[row for row in extra if row.name not in listed])
    there = {(record.key.dataset, record.key.method) for record in records}
    pairs = [
        comparison(records, first, second, dataset=dataset, metric="nll")
        for first, second in _COMPARED
        for dataset in (*DATASETS, *others)
        if {(dataset, first), (dataset, second)} <= there
    ]
    found = [beside(table, paper)]
    if others:  # data sets that the paper does not have
        columns = tuple(replace(paper.columns[0], name=name, title=name, dataset=name) for name in others)
        rows = tuple(replace(row, cells=(None,) * len(others)) for row in table.rows)
        found.append(
            ours(records, replace(paper, name="uci_others", title="Other data sets", columns=columns, rows=rows))
        )
    return [*found, *([comparison_table(pairs)] if pairs else [])]


def _known(name: str) -> bool:
    return name.removesuffix("_grid") in methods.names()


experiment = Experiment(
    "uci",
    "UCI regression",
    "Five data sets, 20 random splits each, 2 × 50 ReLU networks in μP; test NLL in the targets' own units.",
    20,
    _jobs,
    _tables,
)
