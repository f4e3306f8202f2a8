"""The numbers of the paper's tables, one JSON file each. A file's name is the table's name.

Examples:
    >>> paper_table("uci_nll").cell("rich_bll", "boston").text
    '2.61 ± 0.04'
"""

import json
from decimal import Decimal
from importlib.resources import files
from typing import Any

from richbll_bench.errors import PaperTableError, TableError
from richbll_bench.tables.table import Cell, Column, Row, Table

__all__ = ["paper_label", "paper_table", "paper_table_names"]


def paper_table_names() -> list[str]:
    """The names that `paper_table` takes."""
    names = [entry.name for entry in files(__name__).iterdir()]
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def paper_table(name: str) -> Table:
    """A table of the paper: values as printed, to the digit, and bold where the paper prints bold."""
    content = _content(name)
    try:
        columns = tuple(Column(**column) for column in content["columns"])
        rows = [
            Row(row["name"], row["title"], row["block"], _cells(row, content["num_seeds"]), row.get("note", ""))
            for row in content["rows"]
        ]
        return Table(name, content["title"], columns, tuple(rows), tuple(content["notes"]))
    except (KeyError, TypeError, TableError) as error:
        raise PaperTableError(f"paper_numbers/{name}.json is malformed: {error!r}.") from error


def paper_label(name: str) -> str:
    """The label of a table in the paper's source."""
    return str(_content(name)["label"])


def _content(name: str) -> dict[str, Any]:
    if name not in paper_table_names():
        raise PaperTableError(f"The paper has no table {name!r} here; there are {', '.join(paper_table_names())}.")
    text = (files(__name__) / f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text, parse_float=Decimal)  # a Decimal keeps the zeros at the end: 3.10
    return content


def _cells(row: dict[str, Any], num_seeds: int | None) -> tuple[Cell, ...]:
    return tuple(
        Cell(text=cell["text"])
        if "text" in cell
        else Cell(
            mean=float(cell["mean"]),
            error=float(cell["error"]),
            count=num_seeds,
            bold=cell.get("bold", False),
            text=f"{cell['mean']} ± {cell['error']}",
        )
        for cell in row["cells"]
    )
