"""What the pages say is true: their code runs, their links lead somewhere, their numbers are the records'."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


def names_of_the_readme() -> dict:
    """What the README takes for granted: a trained model, a loader, inputs and a validation error."""
    torch.manual_seed(0)
    x = torch.randn(200, 3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=50)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    names = {"train_loader": loader, "val_loader": loader, "cal_loader": loader, "new_loader": loader}
    return names | {"model": model, "x": x[:5]}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::richbll.errors.RichBLLWarning"
)
@pytest.mark.parametrize("page", WITH_CODE, ids=[page.name for page in WITH_CODE])
def test_code_on_the_page_runs(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = names_of_the_readme() if page.name == "README.md" else {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), namespace)


def test_comments_that_show_output_are_true(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "quickstart.md").read_text()
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]:
        exec(block, namespace)
    promised = re.findall(r"print\(uq\)  # (.*)", text)
    assert capsys.readouterr().out.strip().splitlines() == promised


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_numbers_of_the_readme_are_those_of_the_records() -> None:
    script = ROOT / "benchmarks" / "readme.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_room_of_the_library_is_in_the_contributing_guide() -> None:
    from tests.test_architecture import FLOORS

    text = (ROOT / "CONTRIBUTING.md").read_text()
    present = {p.stem for p in (ROOT / "src" / "richbll").iterdir() if not p.name.startswith(("_", "py"))}
    listed = set(re.findall(r"\w+", text.split("## The rooms")[1].split("## How to add")[0]))
    assert present <= listed
    assert present <= {room for rooms in FLOORS for room in rooms}


def test_docs_build_without_warnings(tmp_path) -> None:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "site" / "api" / "index.html").read_text()
    for name in ("RichBLL", "sample_functions", "RegressionPredictive", "DataChangedError"):
        assert name in api
