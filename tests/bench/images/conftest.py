"""Experiments of these tests read small pretended images, and keep networks in a cache of their own."""

import os
from pathlib import Path

import pytest

from richbll_bench import image_datasets
from tests.bench.images.pretend_images import write_all

REAL_FOLDERS = os.environ.get("RICHBLL_DATA", "")  # before a fixture empties it


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("images")
    return folder, write_all(folder)


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests of a process: the same small networks are trained once."""
    return tmp_path_factory.mktemp("networks")


@pytest.fixture
def pretended(written: tuple[Path, dict], networks: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, known = written
    monkeypatch.setenv("RICHBLL_DATA", str(folder))
    monkeypatch.setenv("RICHBLL_CACHE", str(networks))
    monkeypatch.setattr(image_datasets, "declaration", lambda name: known[name])
    return folder
