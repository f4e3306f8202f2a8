"""Import direction, top to bottom; rooms on one line are strangers. Imports inside functions count too."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"

FLOORS = [
    ["cli"],
    ["integrations", "tabular", "bandits"],
    ["loading", "merging"],
    ["estimator"],
    ["calibrating", "diagnosing", "updating", "artifact", "export", "functions", "holding"],
    ["tuning", "diagnostics", "fitting"],
    ["keeping"],
    ["predictive", "fitted", "options", "distributed"],
    ["likelihoods", "solvers"],
    ["network", "sketches"],
    ["core"],
    ["linalg", "products"],
    ["checks", "rng", "files", "precision", "room"],
    ["errors", "_version"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
BARE = {"torch", "numpy", "safetensors", "tqdm", "richbll"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            # `from richbll import artifact` imports a room
            found |= {f"richbll.{a.name}" for a in node.names} if node.module == "richbll" else {node.module}
    return found


def room(module: str) -> str:
    return module.split(".")[1]


FILES = [p for p in sorted((SRC / "richbll").rglob("*.py")) if p.relative_to(SRC / "richbll") != Path("__init__.py")]


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SRC)) for p in FILES])
def test_imports_go_down(path: Path) -> None:
    own = path.relative_to(SRC / "richbll").parts[0].removesuffix(".py")
    assert own in FLOOR, f"{own} has no floor: put it into FLOORS"
    for module in imports(path):
        # commands may, when they are asked for
        assert own == "cli" or not module.startswith("richbll_bench"), f"{path} imports the evidence"
        if not module.startswith("richbll."):
            continue
        other = room(module)
        if other != own:
            assert FLOOR[other] > FLOOR[own], f"{own} (floor {FLOOR[own]}) imports {other} (floor {FLOOR[other]})"


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(SRC)) for p in FILES])
def test_the_library_needs_little(path: Path) -> None:
    import sys

    if "integrations" in path.parts or "cli" in path.parts or "tabular" in path.parts:
        return
    for module in imports(path):
        top = module.split(".")[0]
        if module == "matplotlib.figure" and path.name == "diagnosis.py":
            continue  # plot() says so when it is missing
        assert top in BARE or top in sys.stdlib_module_names, f"{path} imports {module}"


def test_the_evidence_uses_public_names_only() -> None:
    import richbll

    for path in sorted((SRC / "richbll_bench").rglob("*.py")):
        for module in imports(path):
            if module.startswith("richbll."):
                assert module.split(".")[1] in richbll.__all__, f"{path} reaches into {module}"


def test_sizes() -> None:
    lines = {path: len(path.read_text().splitlines()) for path in sorted(SRC.rglob("*.py"))}
    assert max(lines.values()) <= 400, max(lines, key=lines.get)
    core = {path.name: count for path, count in lines.items() if "core" in path.parts}
    assert sum(core.values()) - core["bounds.py"] <= 450  # what computes; bounds.py is theory, with its examples
    assert core["bounds.py"] <= 250
    assert not {"utils.py", "helpers.py", "common.py", "misc.py"} & {path.name for path in lines}
