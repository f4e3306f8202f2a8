"""`richbll data …`: what it prints, and when it fails."""

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from richbll_bench import datasets, image_datasets
from richbll_bench.commands.data import app
from richbll_bench.data.dataset import csv_dataset
from richbll_bench.errors import DatasetError, MissingDatasetError, UnknownDatasetError
from tests.bench.http_source import Site, serving

CONTENT = b"a,price\n1,2\n3,4\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One data set, `homes`, which is nowhere yet, served at an address."""
    monkeypatch.setenv("RICHBLL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("RICHBLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(datasets, "names", lambda: ["homes"])
    monkeypatch.setattr(image_datasets, "names", lambda: [])
    declare(monkeypatch)
    return tmp_path


def declare(monkeypatch: pytest.MonkeyPatch, *urls: str) -> None:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    homes = csv_dataset("homes", title="Homes", file="homes.csv", sha256=sha256, target="price", sources=urls)
    known = {"homes": homes}
    original = datasets.declaration
    monkeypatch.setattr(datasets, "declaration", lambda name: known[name] if name in known else original(name))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.output


def place(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / "data" / "homes.csv"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def test_list(folder: Path) -> None:
    assert "homes  Homes  price   not here" in run("list")
    path = place(folder)
    printed = run("list")
    assert f"homes  Homes  price   {path}" in printed
    assert str(folder / "cache") in printed


def test_fetch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Site(CONTENT)) as site:
        declare(monkeypatch, site.url)
        path = folder / "cache" / "homes.csv"
        assert run("fetch", "homes") == f"homes: {path}\n"
        assert path.read_bytes() == CONTENT
        assert run("fetch", "--all") == f"homes: {path}\n"
    assert len(site.asked) == 1


def test_fetch_says_what_it_needs(folder: Path) -> None:
    with pytest.raises(DatasetError, match="or say --all; there are homes"):
        run("fetch")
    with pytest.raises(DatasetError, match="or say --all"):
        run("fetch", "homes", "--all")
    with pytest.raises(UnknownDatasetError, match="no data set 'flats'"):
        run("fetch", "flats")
    with pytest.raises(MissingDatasetError, match=r"homes \(homes.csv\) is not to be had"):
        run("fetch", "homes")


def test_check(folder: Path) -> None:
    assert "homes: not here" in run("check")
    with pytest.raises(DatasetError, match="homes is not here"):
        run("check", "homes")
    path = place(folder)
    assert run("check", "homes") == f"homes: right, {path}\n"
    path.write_bytes(b"else")
    with pytest.raises(DatasetError, match=f"homes: {path} has sha256 .*, but it must be"):
        run("check")
