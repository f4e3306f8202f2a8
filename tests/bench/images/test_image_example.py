"""The example runs, and leaves its picture."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "which_images.py"


def test_the_example_ends_with_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "pictures" / "which.png"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "of the digits sent to a person" in done.stdout
    assert out.read_bytes()[:4] == b"\x89PNG"
