"""What a table is, whoever made it: columns, rows in blocks, and cells that are numbers or words."""

from dataclasses import dataclass
from typing import Literal

from richbll_bench.errors import TableError

Better = Literal["lower", "higher"]
NO_CELL = "–"


@dataclass(frozen=True)
class Cell:
    """A mean with its standard error over `count` seeds, or words. `text` is how it is written, when that is fixed."""

    mean: float | None = None
    error: float | None = None
    count: int | None = None
    bold: bool = False
    text: str = ""


@dataclass(frozen=True)
class Column:
    """One measure on one data set; `origin` tells ours from the paper's where they stand side by side."""

    name: str
    title: str
    dataset: str = ""
    metric: str = ""
    better: Better | None = None
    unit: str = ""
    decimals: int = 3
    origin: str = ""

    @property
    def heading(self) -> str:
        """The title with the direction in which values get better; beside it, the paper's column is just "paper"."""
        arrow = {"lower": " ↓", "higher": " ↑", None: ""}[self.better]
        return "paper" if self.origin == "paper" else f"{self.title}{arrow}"


@dataclass(frozen=True)
class Row:
    """One method. Rows of one block compete for bold print."""

    name: str
    title: str
    block: int = 0
    cells: tuple[Cell | None, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; every row has a cell, or None, for every column."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise TableError(
                    f"Table {self.name}: row {row.name} has {len(row.cells)} cells for {len(self.columns)} columns."
                )

    def row(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise TableError(f"Table {self.name} has no row {name!r}; it has {', '.join(row.name for row in self.rows)}.")

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell in a row and a column, by their names."""
        names = [column.name for column in self.columns]
        if column not in names:
            raise TableError(f"Table {self.name} has no column {column!r}; it has {', '.join(names)}.")
        return self.row(row).cells[names.index(column)]


def written(cell: Cell | None, column: Column) -> str:
    """A cell in words: mean ± standard error at the column's decimals, or its own text.

    Examples:
        >>> written(Cell(mean=2.5712, error=0.0501), Column("boston", "Boston"))
        '2.571 ± 0.050'
        >>> written(Cell(mean=-0.0001), Column("boston", "Boston"))
        '0.000'
    """
    if cell is None:
        return NO_CELL
    if cell.text or cell.mean is None:
        return cell.text or NO_CELL
    mean = f"{round(cell.mean, column.decimals) + 0.0:.{column.decimals}f}"  # never −0.00
    return mean if cell.error is None else f"{mean} ± {cell.error:.{column.decimals}f}"
