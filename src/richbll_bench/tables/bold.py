"""Bold print: in every block of every column the best mean, and all within one standard error of it."""

import math
from dataclasses import replace

from richbll_bench.tables.table import Better, Cell, Table


def with_bold(table: Table) -> Table:
    """The table with bold decided anew; a standard error is that of the best. Columns without direction stay plain."""
    marks: list[list[bool]] = [[False] * len(table.columns) for _ in table.rows]
    for j, column in enumerate(table.columns):
        if column.better is None:
            continue
        for block in {row.block for row in table.rows}:
            members = [i for i, row in enumerate(table.rows) if row.block == block]
            cells = {i: cell for i in members if (cell := table.rows[i].cells[j]) is not None and _counts(cell)}
            for i in _winners(cells, column.better):
                marks[i][j] = True
    rows = [
        replace(row, cells=tuple(cell and replace(cell, bold=bold) for cell, bold in zip(row.cells, line, strict=True)))
        for row, line in zip(table.rows, marks, strict=True)
    ]
    return replace(table, rows=tuple(rows))


def _counts(cell: Cell) -> bool:
    return cell.mean is not None and math.isfinite(cell.mean)


def _winners(cells: dict[int, Cell], better: Better) -> list[int]:
    if not cells:
        return []
    sign = 1.0 if better == "lower" else -1.0
    loss = {i: sign * float(cell.mean or 0.0) for i, cell in cells.items()}
    best = min(loss, key=lambda i: loss[i])
    margin = cells[best].error or 0.0
    return [i for i in cells if loss[i] <= loss[best] + margin]
