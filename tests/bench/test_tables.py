"""Means, errors, bold print, the paper beside ours, paired comparisons, and the forms that a table is written in."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from richbll_bench.errors import TableError
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Key, Record
from richbll_bench.tables import (
    Cell,
    Column,
    Row,
    Table,
    beside,
    comparison,
    comparison_tables,
    markdown,
    ours,
    plain_text,
    rich_table,
    structure,
    summary,
    with_bold,
)

COLUMNS = (
    Column("boston", "Boston", "boston", "nll", "lower"),
    Column("auroc", "AUROC", "wine_red", "auroc", "higher", decimals=2),
)
SHAPE = Table("small", "A small table", COLUMNS, (Row("rich_bll", "Rich-BLL", 0, (None, None)),))


def record(method: str, seed: int, dataset: str = "boston", experiment: str = "uci", **metrics: float) -> Record:
    return Record(Key(experiment, dataset, method, seed), {}, metrics, 1.0, "2026-11-15T00:00:00+00:00", None, {})


def records(method: str, values: list[float], dataset: str = "boston", metric: str = "nll") -> list[Record]:
    return [record(method, seed, dataset, **{metric: value}) for seed, value in enumerate(values)]


# ---------------------------------------------------------------------- summaries


def test_summary() -> None:
    values = np.random.default_rng(0).normal(size=20)
    cell = summary(values.tolist())
    assert cell.mean == pytest.approx(values.mean())
    assert cell.error == pytest.approx(values.std(ddof=1) / 20**0.5)
    assert cell.count == 20
    assert summary([2.0]) == Cell(mean=2.0, error=None, count=1)
    assert math.isnan(summary([1.0, math.nan]).mean)
    assert summary([1.0, math.inf]).mean == math.inf
    assert summary([1.0, math.inf]).error is None
    with pytest.raises(TableError, match="No values"):
        summary([])


# ---------------------------------------------------------------------- bold


def bold_of(table: Table, column: str) -> dict[str, bool]:
    return {row.name: cell.bold for row in table.rows if (cell := table.cell(row.name, column)) is not None}


def test_bold_is_the_best_and_what_is_within_its_error_per_block() -> None:
    rows = [
        Row("a", "a", 0, (Cell(2.0, 0.1), Cell(0.9, 0.02))),
        Row("b", "b", 0, (Cell(2.1, 5.0), Cell(0.91, 0.005))),  # within the best's error, not by its own
        Row("c", "c", 0, (Cell(2.11, 0.5), Cell(0.8, 0.5))),
        Row("d", "d", 1, (Cell(9.0, None), None)),
        Row("e", "e", 1, (Cell(math.nan, None, bold=True), Cell(0.5, 0.0))),
    ]
    table = with_bold(Table("t", "", COLUMNS, tuple(rows)))
    assert bold_of(table, "boston") == {"a": True, "b": True, "c": False, "d": True, "e": False}
    assert bold_of(table, "auroc") == {"a": False, "b": True, "c": False, "e": True}


def test_no_bold_without_a_direction() -> None:
    plain = (replace(COLUMNS[0], better=None),)
    table = with_bold(Table("t", "", plain, (Row("a", "a", 0, (Cell(1.0, bold=True),)),)))
    assert bold_of(table, "boston") == {"a": False}


# ---------------------------------------------------------------------- from records


def test_ours_has_the_paper_s_rows_then_extra_ones_then_all_others() -> None:
    found = [
        *records("rich_bll", [1.0, 3.0]),
        *records("rich_bll", [0.9, 0.9], "wine_red", "auroc"),
        *records("wide", [1.5, 1.5, 1.5]),
        *records("surprise", [7.0]),
        *records("elsewhere", [7.0], "energy"),
    ]
    table = ours(found, SHAPE, extra=[Row("wide", "Rich-BLL, all layers", 0)])
    assert [(row.name, row.title, row.block) for row in table.rows] == [
        ("rich_bll", "Rich-BLL", 0),
        ("wide", "Rich-BLL, all layers", 0),
        ("surprise", "surprise", 1),
    ]
    assert table.cell("rich_bll", "boston").mean == 2.0
    assert table.cell("rich_bll", "boston").error == pytest.approx(1.0)
    assert table.cell("wide", "auroc") is None
    assert bold_of(table, "boston") == {"rich_bll": False, "wide": True, "surprise": True}
    assert "over 1 to 3 seeds" in table.notes[0]


def test_a_seed_counts_once() -> None:
    twice = [record("bll", 0, nll=1.0), record("bll", 0, experiment="uci-long", nll=2.0)]
    with pytest.raises(TableError, match=r"Two records of bll on boston with seed 0 \(uci-long, uci\)"):
        ours(twice, SHAPE)


def test_beside_the_paper() -> None:
    paper = paper_table("uci_nll")
    our = ours(records("rich_bll", [2.5, 2.6]) + records("new", [2.0, 2.0]), paper)
    both = beside(our, paper)
    assert [column.heading for column in both.columns[:3]] == ["Boston ↓", "paper", "Concrete ↓"]
    assert [column.origin for column in both.columns[:3]] == ["ours", "paper", "ours"]
    first, second, *rest = both.row("rich_bll").cells
    assert first.mean == pytest.approx(2.55)
    assert second == paper.cell("rich_bll", "boston")
    assert rest[0] is None
    assert both.row("new").cells[:2] == (our.cell("new", "boston"), None)
    assert len(both.rows) == 11
    assert both.notes[1].startswith("Paper: ")
    with pytest.raises(TableError, match="different columns"):
        beside(our, paper_table("wine_ood"))


def test_beside_keeps_what_the_paper_says_of_a_row() -> None:
    paper = paper_table("wheel_bandit")
    both = beside(ours([], paper), paper)
    assert both.row("vbll").note == "the paper cites this number from another paper"
    assert "| VBLL † |" in markdown(both)
    assert "† the paper cites this number from another paper" in markdown(both)


# ---------------------------------------------------------------------- paired


def test_comparison() -> None:
    found = records("a", [1.0, 2.0, 3.0, 9.0]) + records("b", [1.5, 2.0, 2.5])
    pair = comparison(found, "a", "b", dataset="boston", metric="nll")
    differences = np.array([-0.5, 0.0, 0.5])
    assert pair.mean == pytest.approx(differences.mean())
    assert pair.error == pytest.approx(differences.std(ddof=1) / 3**0.5)
    assert (pair.wins, pair.ties, pair.losses, pair.num_splits, pair.num_unpaired) == (1, 1, 1, 3, 1)


def test_comparison_is_by_seed_not_by_order() -> None:
    found = records("a", [1.0, 2.0, 3.0]) + records("b", [1.1, 2.1, 3.1])[::-1]
    pair = comparison(found, "a", "b", dataset="boston", metric="nll")
    assert pair.mean == pytest.approx(-0.1)
    assert pair.error == pytest.approx(0.0, abs=1e-12)
    assert (pair.wins, pair.losses) == (3, 0)


def test_higher_may_be_better_and_nan_loses() -> None:
    found = records("a", [0.9, math.nan, math.nan], metric="auroc") + records("b", [0.8, 0.8, math.nan], metric="auroc")
    pair = comparison(found, "a", "b", dataset="boston", metric="auroc", better="higher")
    assert (pair.wins, pair.ties, pair.losses) == (1, 1, 1)
    assert math.isnan(pair.mean)
    assert pair.error is None


def test_nothing_to_compare() -> None:
    assert comparison(records("a", [1.0]), "a", "b", dataset="boston", metric="nll") is None
    assert comparison_tables([None]) == []
    with pytest.raises(TableError, match="Two records of a on boston with seed 0"):
        comparison(records("a", [1.0]) * 2, "a", "b", dataset="boston", metric="nll")


def test_comparison_table() -> None:
    found = records("a", [1.0, 2.0, 3.0]) + records("b", [1.5, 2.0, 2.5])
    pair = comparison(found, "a", "b", dataset="boston", metric="nll")
    (table,) = comparison_tables([None, pair], decimals=2)
    assert markdown(table).splitlines()[2] == "| boston, nll: a − b | 0.00 ± 0.29 | 1 (1 ties) | 3 |"


# ---------------------------------------------------------------------- the forms

ROWS = (
    Row("a", "A|B", 0, (Cell(2.0, 0.1, 5, bold=True), Cell(0.9, 0.02))),
    Row("c", "C", 1, (None, Cell(math.nan, None, 5))),
)
MADE = Table("t", "Title", COLUMNS, ROWS, ("A note.",))


def test_markdown() -> None:
    assert markdown(MADE).splitlines() == [
        "|  | Boston ↓ | AUROC ↑ |",
        "|---|---|---|",
        "| A\\|B | **2.000 ± 0.100** | 0.90 ± 0.02 |",
        "|  |  |  |",
        "| C | – | nan |",
        "",
        "- A note.",
    ]


def test_plain_text() -> None:
    assert plain_text(MADE).splitlines() == [
        "Title",
        "          Boston ↓       AUROC ↑",
        "A|B  2.000 ± 0.100*  0.90 ± 0.02",
        "---------------------------------",
        "C                –           nan",
        "A note.",
    ]
    assert plain_text(replace(MADE, rows=())).splitlines()[0] == "Title"


def test_rich() -> None:
    pytest.importorskip("rich")
    from rich.console import Console

    out = io.StringIO()
    Console(width=100, file=out, force_terminal=True, color_system="standard").print(
        rich_table(replace(MADE, title="[bold]Title"))
    )
    assert "[bold]Title" in out.getvalue()  # brackets are not markup
    assert "\x1b[1m2.000 ± 0.100" in out.getvalue()
    assert "A note." in out.getvalue()


def test_structure_is_json() -> None:
    made = structure(MADE)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["columns"][0]["heading"] == "Boston ↓"
    assert made["rows"][0]["cells"][0] == {"mean": 2.0, "error": 0.1, "count": 5, "bold": True, "text": "2.000 ± 0.100"}
    assert made["rows"][1]["cells"] == [None, {"mean": None, "error": None, "count": 5, "bold": False, "text": "nan"}]
    assert made["notes"] == ["A note."]
    json.dumps([structure(paper_table(name)) for name in ("uci_nll", "complexity")], allow_nan=False)


def test_rows_and_columns_must_fit() -> None:
    with pytest.raises(TableError, match="row x has 1 cells for 2 columns"):
        Table("t", "", COLUMNS, (Row("x", "x", 0, (None,)),))
    with pytest.raises(TableError, match="no row 'y'; it has a, c"):
        MADE.row("y")
    with pytest.raises(TableError, match="no column 'y'; it has boston, auroc"):
        MADE.cell("a", "y")
