"""A table as plain lists and dictionaries, for a report to draw and for JSON."""

import math
from dataclasses import asdict
from typing import Any

from richbll_bench.tables.table import Cell, Column, Table, written


def structure(table: Table) -> dict[str, Any]:
    """Everything that the table says; every cell also as it is written. What is not finite is None, and written."""
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{**asdict(column), "heading": column.heading} for column in table.columns],
        "rows": [
            {
                "name": row.name,
                "title": row.title,
                "block": row.block,
                "note": row.note,
                "cells": [_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)],
            }
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def _cell(cell: Cell | None, column: Column) -> dict[str, Any] | None:
    if cell is None:
        return None
    numbers = {name: _finite(value) for name, value in (("mean", cell.mean), ("error", cell.error))}
    return {**numbers, "count": cell.count, "bold": cell.bold, "text": written(cell, column)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
