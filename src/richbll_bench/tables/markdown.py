"""A table in markdown."""

from richbll_bench.tables.table import Cell, Column, Table, written


def markdown(table: Table) -> str:
    """Pipes and dashes, best values bold; an empty row between blocks, the notes below.

    Examples:
        >>> from richbll_bench.tables.table import Row
        >>> row = Row("bll", "BLL", cells=(Cell(2.6, 0.1, bold=True),))
        >>> print(markdown(Table("t", "NLL", (Column("boston", "Boston", better="lower", decimals=1),), (row,))))
        |  | Boston ↓ |
        |---|---|
        | BLL | **2.6 ± 0.1** |
    """
    lines = [_line(["", *(_escaped(column.heading) for column in table.columns)])]
    lines.append("|" + "---|" * (1 + len(table.columns)))
    for before, row in zip([None, *table.rows], table.rows, strict=False):
        if before is not None and before.block != row.block:
            lines.append(_line([""] * (1 + len(table.columns))))
        title = row.title + (" †" if row.note else "")
        lines.append(_line([_escaped(title), *map(_marked, row.cells, table.columns)]))
    notes = [*(f"† {note}" for note in dict.fromkeys(row.note for row in table.rows if row.note)), *table.notes]
    return "\n".join([*lines, *([""] if notes else []), *(f"- {_escaped(note)}" for note in notes)])


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _marked(cell: Cell | None, column: Column) -> str:
    text = _escaped(written(cell, column))
    return f"**{text}**" if cell is not None and cell.bold else text


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
