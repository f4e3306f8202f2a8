"""A table for the terminal: plain, or for rich where it is installed."""

from typing import TYPE_CHECKING

from richbll_bench.tables.table import Table, written

if TYPE_CHECKING:
    import rich.table

_STAR = "*"


def plain_text(table: Table) -> str:
    """Aligned columns; a star marks what bold marks elsewhere.

    Examples:
        >>> from richbll_bench.tables.table import Cell, Column, Row
        >>> rows = Row("a", "first", cells=(Cell(2.6, 0.1, bold=True),)), Row("b", "second", cells=(Cell(12.0, 0.2),))
        >>> print(plain_text(Table("t", "NLL", (Column("boston", "Boston", better="lower", decimals=1),), rows)))
        NLL
                   Boston ↓
        first    2.6 ± 0.1*
        second  12.0 ± 0.2
    """
    lines = [["", *(f"{column.heading} " for column in table.columns)]]
    for row in table.rows:
        texts = [
            written(cell, column) + (_STAR if cell is not None and cell.bold else " ")
            for cell, column in zip(row.cells, table.columns, strict=True)
        ]
        lines.append([row.title + (" †" if row.note else ""), *texts])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    blocks = [table.rows[0].block if table.rows else 0, *(row.block for row in table.rows)]
    out = [table.title]
    for number, line in enumerate(lines):
        if number > 1 and blocks[number] != blocks[number - 1]:
            out.append("-" * (sum(widths) + 2 * len(widths) - 2))
        name, *texts = (
            text.rjust(width) if j else text.ljust(width)
            for j, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        out.append("  ".join([name, *texts]).rstrip())
    return "\n".join([*out, *_notes(table)])


def rich_table(table: Table) -> "rich.table.Table":
    """The same for `rich.print`."""
    from rich.table import Table as RichTable
    from rich.text import Text

    caption = Text("\n".join(_notes(table)))
    made = RichTable(title=Text(table.title), caption=caption, title_justify="left", caption_justify="left")
    made.add_column("", no_wrap=True)
    for column in table.columns:
        made.add_column(Text(column.heading), justify="right", no_wrap=True)
    for row, after in zip(table.rows, [*table.rows[1:], None], strict=True):
        texts = [
            Text(written(cell, column), style="bold" if cell is not None and cell.bold else "")
            for cell, column in zip(row.cells, table.columns, strict=True)
        ]
        ends = after is not None and after.block != row.block
        made.add_row(Text(row.title + (" †" if row.note else "")), *texts, end_section=ends)
    return made


def _notes(table: Table) -> list[str]:
    daggers = dict.fromkeys(row.note for row in table.rows if row.note)
    return [*(f"† {note}" for note in daggers), *table.notes]
