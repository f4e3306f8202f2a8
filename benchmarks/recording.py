"""Records of measurements: rows with keys, so that a run of some rows leaves the others as they were."""

import json
import platform
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from peers import peer_versions

import richbll

HERE = Path(__file__).parent
RECORDS = HERE / "records"
CACHE = HERE / ".cache"  # trained networks, truths and quick records; git-ignored by a file inside it


def cache_folder() -> Path:
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    return CACHE


def versions() -> dict[str, str]:
    own = {"python": platform.python_version(), "torch": torch.__version__, "richbll": richbll.__version__}
    return own | peer_versions()


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def command() -> str:
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def read(path: Path) -> dict[str, Any]:
    """A record, or an empty one."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return found


def write(path: Path, keys: Sequence[str], rows: Sequence[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Merge rows into the record at a path: those with the same keys are replaced, new ones come last."""
    record = read(path)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kept = {tuple(row[key] for key in keys): row for row in record["rows"]}
    for row in rows:
        kept[tuple(row[key] for key in keys)] = row | {"measured": now}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = record.get(name, {}) | value
        record[name] = value
    record |= {"threads": 1, "cpu": cpu_name(), "versions": versions(), "rows": list(kept.values())}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record
