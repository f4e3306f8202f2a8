"""Our records as a table of a given shape, such as the paper's."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from richbll_bench.errors import TableError
from richbll_bench.records import Record
from richbll_bench.tables.bold import with_bold
from richbll_bench.tables.summary import summary
from richbll_bench.tables.table import Cell, Column, Row, Table


def ours(records: Iterable[Record], like: Table, *, extra: Sequence[Row] = ()) -> Table:
    """Mean ± standard error over seeds in the columns of `like`, bold by our own rule.

    Rows are those of `like`, then those of `extra` (their names, titles and blocks; cells are not read), then every
    other method on record, in a block of its own, so that nothing on record is left out. A column takes the records of
    its data set and, of those, the metric that it names.
    """
    by_cell = _by_method_and_dataset(records)
    known = [*like.rows, *extra]
    listed = {row.name for row in known}
    last = max((row.block for row in known), default=-1) + 1
    datasets = {column.dataset for column in like.columns}
    others = dict.fromkeys(method for method, dataset in by_cell if method not in listed and dataset in datasets)
    rows = [
        replace(row, cells=tuple(_cell(by_cell, row.name, column) for column in like.columns), note="")
        for row in [*known, *(Row(method, method, last) for method in others)]
    ]
    return with_bold(replace(like, rows=tuple(rows), notes=_notes(rows)))


def _by_method_and_dataset(records: Iterable[Record]) -> dict[tuple[str, str], dict[int, Record]]:
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        key = record.key
        seeds = found.setdefault((key.method, key.dataset), {})
        if key.seed in seeds:
            raise TableError(
                f"Two records of {key.method} on {key.dataset} with seed {key.seed}"
                f" ({key.experiment}, {seeds[key.seed].key.experiment}): choose one experiment and its settings."
            )
        seeds[key.seed] = record
    return found


def _cell(by_cell: dict[tuple[str, str], dict[int, Record]], method: str, column: Column) -> Cell | None:
    records = by_cell.get((method, column.dataset), {}).values()
    values = [record.metrics[column.metric] for record in records if column.metric in record.metrics]
    return summary(values) if values else None


def _notes(rows: Iterable[Row]) -> tuple[str, ...]:
    counts = {cell.count for row in rows for cell in row.cells if cell is not None and cell.count is not None}
    if not counts:
        return ()
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return (f"Mean ± standard error over {seeds} seeds. Bold: the best of a block, and all within its standard error.",)
