"""The paper's tables as we keep them: their shapes, and every cell against the paper's source where it is present."""

import json
import os
import re
from importlib.resources import files
from pathlib import Path

import pytest

from richbll_bench import datasets, paper_numbers
from richbll_bench.errors import PaperTableError
from richbll_bench.paper_numbers import paper_label, paper_table, paper_table_names

TEX = Path(os.environ.get("RICHBLL_PAPER", "rich-bll.tex"))
SHAPES = {
    "cifar10": (8, 4),
    "complexity": (4, 3),
    "uci_nll": (10, 5),
    "uci_subsample_nll": (6, 5),
    "wheel_bandit": (7, 5),
    "wine_ood": (4, 1),
}


def test_shapes() -> None:
    assert paper_table_names() == sorted(SHAPES)
    for name, shape in SHAPES.items():
        table = paper_table(name)
        assert (len(table.rows), len(table.columns)) == shape
        assert len({row.name for row in table.rows}) == shape[0]
        assert len({column.name for column in table.columns}) == shape[1]
        assert table.title
        assert table.notes


def test_a_few_cells() -> None:
    uci = paper_table("uci_nll")
    cell = uci.cell("rich_bll", "concrete")
    assert (cell.mean, cell.error, cell.bold, cell.count, cell.text) == (3.1, 0.03, True, 20, "3.10 ± 0.03")
    assert uci.cell("bbb", "concrete").mean == 2.99
    assert not uci.cell("bbb", "concrete").bold  # as printed, though it is the lowest
    assert [row.block for row in uci.rows] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert paper_table("wheel_bandit").cell("bll", "delta_0.99").text == "55.80 ± 2.30"
    assert paper_table("wheel_bandit").row("vbll").note == "the paper cites this number from another paper"
    assert paper_table("wine_ood").cell("bll", "auroc").mean == 0.88
    assert paper_table("uci_subsample_nll").cell("rich_bll_s_30", "boston").mean == 2.83
    assert paper_table("cifar10").cell("sngp", "ece").text == "0.027 ± 0.001"
    assert paper_table("complexity").cell("rich_bll_s", "time").text == "O(r³ + kr²)"


def test_columns_say_where_our_numbers_belong() -> None:
    for name in ("uci_nll", "uci_subsample_nll", "wine_ood"):
        assert {column.dataset for column in paper_table(name).columns} <= set(datasets.names())
    for name in set(SHAPES) - {"complexity"}:
        for column in paper_table(name).columns:
            assert column.metric
            assert column.better == ("higher" if "auroc" in column.metric else "lower")


def test_unknown() -> None:
    with pytest.raises(PaperTableError, match="no table 'uci' here; there are cifar10, complexity"):
        paper_table("uci")


def test_malformed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads((files(paper_numbers) / "wine_ood.json").read_text(encoding="utf-8"))
    content["rows"][0]["cells"] = []
    (tmp_path / "wine_ood.json").write_text(json.dumps(content))
    monkeypatch.setattr(paper_numbers, "files", lambda _: tmp_path)
    with pytest.raises(PaperTableError, match=r"wine_ood.json is malformed: .*row rich_bll has 0 cells for 1 columns"):
        paper_table("wine_ood")


# ---------------------------------------------------------------------- against the paper's source


@pytest.fixture(scope="module")
def source() -> str:
    if not TEX.is_file():
        pytest.skip(f"the paper's source is not at {TEX} ($RICHBLL_PAPER)")
    lines = TEX.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("%"))


def tabular(source: str, label: str) -> tuple[list[list[str]], list[int]]:
    """The rows of the tabular after a label, split at &, and the block of each: how many lines it stands below."""
    after = source[source.index(rf"\label{{{label}}}") :]
    content = after[after.index(r"\begin{tabular}") : after.index(r"\end{tabular}")]
    rows, blocks, block = [], [], 0
    for line in map(str.strip, content.splitlines()):
        if line in (r"\midrule", r"\hline"):
            block += 1
        elif line.endswith(r"\\") and "$" in line and "arrow$" not in line and "delta" not in line:
            rows.append([text.strip() for text in line.removesuffix(r"\\").split("&")])
            blocks.append(block - 1)
    return rows, blocks


@pytest.mark.parametrize("name", sorted(set(SHAPES) - {"complexity"}))
def test_every_number(name: str, source: str) -> None:
    table = paper_table(name)
    rows, blocks = tabular(source, paper_label(name))
    assert len(rows) == len(table.rows)
    for row, (title, *texts), block in zip(table.rows, rows, blocks, strict=True):
        assert row.title.replace(" %", "%") == title.replace(r"$^\dagger$", "").replace("\\", "")
        assert bool(row.note) == ("dagger" in title)
        assert row.block == block
        for cell, text in zip(row.cells, texts, strict=True):
            mean, error = re.findall(r"[\d.]+", text)
            assert cell.text == f"{mean} ± {error}"
            assert (cell.mean, cell.error) == (float(mean), float(error))
            assert cell.bold == ("mathbf" in text)


def test_every_complexity(source: str) -> None:
    rows, _ = tabular(source, paper_label("complexity"))
    table = paper_table("complexity")
    for row, (title, *texts) in zip(table.rows, rows, strict=True):
        assert row.title == title
        for cell, text in zip(row.cells, texts, strict=True):
            for tex, ours in {
                r"\mathcal{O}": "O", r"\phi": "φ", r"^\top": "ᵀ", "^3": "³", "^2": "²", " (x)": "(x)", "$": "",
            }.items():  # fmt: skip
                text = text.replace(tex, ours)
            assert cell.text == text


def test_no_table_is_missing(source: str) -> None:
    labels = re.findall(r"\\begin\{table\*?\}.*?\\label\{(.*?)\}", source, flags=re.DOTALL)
    assert sorted(labels) == sorted(map(paper_label, paper_table_names()))
