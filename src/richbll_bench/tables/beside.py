"""Ours beside the paper's."""

from dataclasses import replace

from richbll_bench.errors import TableError
from richbll_bench.tables.table import Cell, Row, Table


def beside(our: Table, paper: Table) -> Table:
    """Every column twice, ours and then the paper's; the paper keeps its own bold print and digits."""
    if [column.name for column in our.columns] != [column.name for column in paper.columns]:
        raise TableError(f"Tables {our.name} and {paper.name} have different columns.")
    columns = tuple(replace(column, origin=origin) for column in our.columns for origin in ("ours", "paper"))
    rows = [replace(row, cells=_pairs(row, paper), note=_note(row.name, paper)) for row in our.rows]
    notes = (*our.notes, *(f"Paper: {note}" for note in paper.notes))
    return Table(our.name, our.title, columns, tuple(rows), notes)


def _pairs(row: Row, paper: Table) -> tuple[Cell | None, ...]:
    theirs: tuple[Cell | None, ...] = (None,) * len(row.cells)
    for candidate in paper.rows:
        if candidate.name == row.name:
            theirs = candidate.cells
    return tuple(cell for pair in zip(row.cells, theirs, strict=True) for cell in pair)


def _note(name: str, paper: Table) -> str:
    return next((row.note for row in paper.rows if row.name == name), "")
