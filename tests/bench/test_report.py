"""The report: everything on record is on one page, whatever is wrong with some of it."""

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Drawing
from typer.testing import CliRunner

from richbll.cli.main import application, main
from richbll_bench import experiments
from richbll_bench.errors import TableError, UnknownExperimentError
from richbll_bench.experiment import Experiment, Figure
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Key, Record, Records
from richbll_bench.replacing import replacing
from richbll_bench.report import page, sections, write_page
from richbll_bench.report.cost import cost
from richbll_bench.report.readme import results
from richbll_bench.tables import Cell, Column, Row, Table, beside, ours

NASTY = '<script>alert("x")</script> & <b>'
VERSIONS = {"python": "3.11.7", "torch": "2.13.0"}


def record(experiment: str, method: str, seed: int, value: float, dataset: str = "boston") -> Record:
    time = f"2026-11-{15 + seed}T00:00:00+00:00"
    return Record(Key(experiment, dataset, method, seed), {}, {"nll": value}, 90.0, time, "0123456789abcdef", VERSIONS)


def draw() -> Drawing:
    figure = Drawing(figsize=(5, 3))
    figure.subplots().plot([1, 2, 3], [3, 1, 2])
    return figure


def draw_many_dots() -> Drawing:
    figure = Drawing(figsize=(5, 3))
    figure.subplots().plot([i % 101 for i in range(9000)], [i % 89 for i in range(9000)], "o")
    return figure


def fails(records: Sequence[Record]) -> list[Table]:
    raise TableError(f"no table of {NASTY}")


def uci_tables(records: Sequence[Record]) -> list[Table]:
    paper = paper_table("uci_nll")
    return [beside(ours(records, paper), paper)]


def nasty_tables(records: Sequence[Record]) -> list[Table]:
    columns = Column("a", NASTY, better="higher", unit='"units"'), Column("b", "words")
    rows = (
        Row("one", NASTY, 0, (Cell(2.0, 0.5, 3), Cell(text="12 (3 ties)")), note="a note"),
        Row("two", "two", 0, (Cell(-10.0, 0.5, 3), Cell(text="9"))),
        Row("three", "three", 1, (None, Cell(text="100"))),
        Row("four", "four", 1, (Cell(30.0, 0.5, 3, bold=True), None), note="another"),
        Row("five", "five", 1, (Cell(float("nan")), None)),
    )
    return [Table("nasty", NASTY, columns, rows, (NASTY,))]


EXPERIMENTS = {
    "uci": Experiment("uci", "UCI regression", "Test NLL.", 20, lambda _: [], uci_tables),
    "nasty": Experiment(
        "nasty",
        f"Nasty {NASTY}",
        NASTY,
        3,
        lambda _: [],
        nasty_tables,
        lambda _: [Figure("lines", NASTY, NASTY, draw), Figure("dots", "Dots", "", draw_many_dots)],
    ),
    "broken": Experiment("broken", "Broken", "", 3, lambda _: [], fails, lambda _: [Figure("f", "Lines", "", draw)]),
    "idle": Experiment("idle", "Never run", "", 3, lambda _: []),
}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    """Three experiments with records, one without, and one whose file cannot be imported."""

    def load(name: str) -> Experiment:
        if name == "absent":
            raise ModuleNotFoundError("No module named 'gpytorch'")
        if name not in EXPERIMENTS:
            raise UnknownExperimentError(name)
        return EXPERIMENTS[name]

    monkeypatch.setattr(experiments, "names", lambda: [*EXPERIMENTS, "absent"])
    monkeypatch.setattr(experiments, "load", load)
    kept = Records(tmp_path / "records")
    for seed in range(3):
        for number, method in enumerate(("rich_bll", "bll", "map")):
            kept.append(record("uci", method, seed, 2.5 + number + 0.01 * seed))
        kept.append(record("nasty", "any", seed, 0.0))
        kept.append(record("broken", "any", seed, 0.0))
    return kept


def test_every_experiment_is_on_the_page(records: Records) -> None:
    text = page(sections(records))
    for name in ("uci", "nasty", "broken", "absent"):
        assert f'<a href="#{name}">' in text
        assert f'<section id="{name}"' in text
    assert '<h2 id="uci-title">UCI regression</h2>' in text
    assert "2.510" in text  # our mean
    assert 'aria-label="Boston, paper"' in text
    assert paper_table("uci_nll").cell("rich_bll", "boston").text.split()[0] in text
    assert "<code>richbll bench uci --seeds 3</code>" in text  # 20 are the default
    assert "<code>richbll bench nasty</code>" in text
    assert "Never run: nothing on record yet. <code>richbll bench idle</code>" in text


def test_names_are_escaped(records: Records) -> None:
    text = page(sections(records))
    assert "<script>alert" not in text
    assert text.count(html.escape(NASTY).replace("&quot;", "&#34;")) >= 7
    assert 'title="&#34;units&#34;"' in text


def test_the_page_needs_nothing_else(records: Records) -> None:
    text = page(sections(records))
    assert "http:" not in text
    assert "https:" not in text
    assert "default-src 'none'" in text
    assert set(re.findall(r'src="(data:image/[a-z+]+;base64),', text)) == {
        "data:image/svg+xml;base64",
        "data:image/png;base64",  # too many dots for an SVG
    }
    assert len(re.findall(r"\bsrc=", text)) == 3
    assert "@import" not in text
    assert "<link" not in text
    assert page(sections(records)) == text


def test_the_cost(records: Records) -> None:
    text = " ".join(page(sections(records)).split())
    assert (
        "9 records of 3 seeds, 13 min 30 s of computing, 2026-11-15 to 2026-11-17. Commit: 0123456789."
        " python 3.11.7; torch 2.13.0." in text
    )
    assert "15 records, 22 min 30 s of computing." in text
    made = [*records.read("uci"), record("uci", "x", 0, 1.0)]
    changed = Record(*list(vars(made[0]).values())[:5], commit="f" * 40 + "+changes", versions={"torch": "2.6"})
    alone = Record(*list(vars(made[0]).values())[:5], commit=None, versions={})
    found = cost([*made, changed, alone])
    assert found.commits == ("0123456789", "ffffffffff with changes", "no commit")
    assert found.versions == ("python 3.11.7", "torch 2.13.0, 2.6")


def test_what_is_wrong_is_said_in_its_section(records: Records) -> None:
    with records.path("uci").open("a") as file:
        file.write("{broken}\n")
    records.append(record("forgotten", "any", 0, 0.0))
    found = {section.name: section for section in sections(records)}
    assert len(found) == 6
    assert "line 10 is not a JSON object" in found["uci"].problems[0]
    assert found["broken"].problems == [f"The tables cannot be made (TableError): no table of {NASTY}"]
    assert len(found["broken"].pictures) == 1  # the tables' failure is not the figures'
    assert "No module named 'gpytorch'" in found["absent"].problems[0]
    assert "there is no experiment forgotten" in found["forgotten"].problems[0]
    assert not found["nasty"].problems
    assert len(found["nasty"].tables) == 1
    text = page(list(found.values()))
    assert text.count('class="problem"') == 4
    assert "(something is wrong)" in text


def test_a_figure_that_fails_leaves_the_others(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    def no() -> Drawing:
        raise ValueError("no points")

    figures = [Figure("first", "First", "", no), Figure("second", "Second", "", draw)]
    changed = Experiment("uci", "UCI", "", 3, lambda _: [], uci_tables, lambda _: figures)
    monkeypatch.setitem(EXPERIMENTS, "uci", changed)
    found = sections(records)[0]
    assert found.problems == ["The figure first cannot be drawn (ValueError): no points"]
    assert [picture.title for picture in found.pictures] == ["Second"]
    assert len(found.tables) == 1


def test_no_records_at_all(tmp_path: Path, records: Records) -> None:
    text = page(sections(Records(tmp_path / "nowhere")))
    assert "0 records" in text
    assert "UCI regression: nothing on record yet. <code>richbll bench uci</code>" in text


def test_the_page_is_written_whole_or_not_at_all(records: Records, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "new" / "report.html"
    write_page(path, sections(records))
    before = path.read_text()

    def no(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", no)
    with pytest.raises(OSError, match="disk full"):
        write_page(path, [])
    with suppress(KeyError), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_the_command(records: Records, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    arguments = ["report", "--records", str(records.folder), "--out", str(out)]
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 0, result.output
    assert "3 of 5 experiments have records" in result.output
    assert "absent: The experiment cannot be loaded" in result.output
    assert out.read_text() == page(sections(records))
    Records(records.folder / "tiny").append(record("uci", "bll", 0, 9.0))
    CliRunner().invoke(application(), [*arguments, "--tiny"])
    assert "richbll bench uci --tiny --seeds 1" in out.read_text()
    assert "the numbers mean nothing" in out.read_text()


def test_the_tables_of_the_readme(records: Records) -> None:
    text = results(records, {"uci": 1, "idle": 1, "not-yet-written": 1})
    assert text.startswith("### UCI regression\n\nTest NLL.\n\n|  | Boston ↓ | paper |")
    assert "| Rich-BLL | **2.510 ± 0.006** | **2.61 ± 0.04** |" in text
    assert "`richbll bench uci`: 9 records of 3 seeds, 13 min 30 s of computing." in text
    assert text.endswith("Not on record yet: idle. `richbll bench idle`, then `make readme`.")
    with pytest.raises(TableError, match="no table of"):  # the README is not written with a part missing
        results(records, {"uci": 1, "broken": 2})


# ---------------------------------------------------------------------- in a browser

CHECK = """
<script>
const said = { errors: [], orders: [] };
window.onerror = (message) => { said.errors.push(message); };
</script>
"""
CLICKS = """
<script>
window.addEventListener("load", () => {
  const table = document.querySelector("#nasty table");
  const rows = () => [...table.tBodies[0].rows].map((row) => row.cells[0].firstChild.textContent.slice(0, 5));
  const sorted = () => [...table.tHead.rows[0].cells].map((cell) => cell.getAttribute("aria-sort"));
  for (const column of [1, 1, 1, 2, 2, 0]) {
    table.tHead.rows[0].cells[column].querySelector("button").click();
    said.orders.push([rows(), sorted()]);
  }
  said.widths = [...document.images].map((image) => image.naturalWidth);
  said.focus = [...document.querySelectorAll("thead button")].every((button) => button.tabIndex === 0);
  said.page = document.documentElement.scrollWidth <= window.innerWidth;
  const out = document.createElement("pre");
  out.id = "said";
  out.textContent = JSON.stringify(said);
  document.body.append(out);
});
</script>
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_in_a_browser(records: Records, tmp_path: Path) -> None:
    text = page(sections(records))
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("<head>", "<head>" + CHECK).replace("</body>", CLICKS + "</body>"))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--no-first-run", "--window-size=400,900"]
    command += ["--virtual-time-budget=3000", "--dump-dom", copy.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ":CONSOLE" not in done.stderr, done.stderr
    said = json.loads(html.unescape(done.stdout.split('<pre id="said">')[1].split("</pre>")[0]))
    assert said["errors"] == []
    assert said["widths"]
    assert min(said["widths"]) > 0
    assert said["focus"]
    assert said["page"]  # a wide table scrolls by itself, the page does not
    original = [NASTY[:5], "two", "three", "four", "five"]
    assert (
        said["orders"]
        == [
            [["four", NASTY[:5], "two", "five", "three"], ["none", "descending", "none"]],  # higher is better
            [["two", NASTY[:5], "four", "five", "three"], ["none", "ascending", "none"]],
            [original, ["none", "none", "none"]],
            [["two", NASTY[:5], "three", "four", "five"], ["none", "none", "ascending"]],  # 9, 12, 100
            [["three", NASTY[:5], "two", "four", "five"], ["none", "none", "descending"]],
            [[NASTY[:5], "five", "four", "three", "two"], ["ascending", "none", "none"]],
        ]
    )


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stopped:
        main(["report", "--records", str(tmp_path / "none"), "--out", str(out)])
    assert stopped.value.code == 1
    assert "There is no folder" in capsys.readouterr().err
    assert not out.exists()


ON_RECORD = Records(Path(__file__).parents[2] / "records")


@pytest.mark.parametrize("name", ON_RECORD.experiments())
def test_a_part_of_what_is_on_record_makes_tables_and_figures_too(name: str) -> None:
    experiment, everything = experiments.load(name), ON_RECORD.read(name)
    methods = list(dict.fromkeys(record.key.method for record in everything))
    first_seed, last_seed = (choose(record.key.seed for record in everything) for choose in (min, max))
    parts = [[record for record in everything if record.key.method == method] for method in methods]
    for some in (methods[:1], methods[1:2], methods[-2:]):  # of which the seeds differ
        mixed = [r for r in everything if r.key.seed == (first_seed if r.key.method in some else last_seed)]
        parts.append(mixed if first_seed != last_seed else [])
    for part in parts:
        experiment.tables(part)
        figures = experiment.figures(part)
        if figures and not name.startswith("toy"):  # which take seconds to draw
            figures[0].draw()
