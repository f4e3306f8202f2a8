"""NOTATION.md cannot rot: every code name in it is still a name in its module."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "NOTATION.md").read_text().splitlines()
    if line.startswith("|") and "richbll." in line
]


def test_the_table_is_read() -> None:
    assert len(ROWS) > 15
    assert all(len(row) == 6 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row[1] for row in ROWS])
def test_code_names_exist(row: list[str]) -> None:
    module = importlib.import_module(row[2].strip("`"))
    source = Path(module.__file__).read_text()
    for name in re.findall(r"`(\w+)`", row[1]):
        assert re.search(rf"\b{name}\b\s*(:|=|\(|,|\))", source), f"{name} is not a name in {row[2]}"


def test_words_for_users_are_public() -> None:
    from richbll import JointPredictive, RegressionPredictive, RichBLL

    public = {*dir(RichBLL), *RegressionPredictive.__annotations__, *JointPredictive.__annotations__}
    words = {word for row in ROWS for word in re.findall(r"`(\w+)`", row[3])}
    assert {"noise_variance", "prior_variance", "num_data"} <= words <= public | {"basis"}
