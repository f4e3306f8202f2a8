"""A made-up data set in a temporary folder: the same code as for the real ones, without a file that may be absent."""

from pathlib import Path

import numpy as np
import pytest

from richbll_bench import datasets
from richbll_bench.data.reading import Examples

NUM_ROWS = 160


def made_up(num_rows: int = NUM_ROWS, seed: int = 0) -> Examples:
    """A smooth function of three of four columns, one of them constant, with noise."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, 4)) * [1.0, 10.0, 0.1, 0.0] + [0.0, 50.0, -3.0, 7.0]
    y = 20 + 3 * np.sin(x[:, 0]) + 0.2 * x[:, 1] + 0.3 * generator.normal(size=num_rows)
    return Examples(x, y, ("a", "b", "c", "d"), "y")


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Examples:
    """What every data set holds during a test; networks are kept in the test's own folder."""
    examples = made_up()
    monkeypatch.setattr(datasets, "load", lambda name, **_: examples)
    monkeypatch.setenv("RICHBLL_CACHE", str(tmp_path / "cache"))
    return examples
