"""Records of measurements: rows with keys, so that a run of some rows leaves the others as they were."""

import fcntl
import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
    """With its family, as clouds hide which of them it is."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    name = told.get("model name", platform.machine())
    return f"{name}, family {told['cpu family']}" if "cpu family" in told else name


def read(path: Path) -> dict[str, Any]:
    """A record, or an empty one."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return found


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only one process at a time reads and writes a record."""
    with (cache_folder() / f"{path.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(path: Path, keys: Sequence[str], rows: Sequence[dict[str, Any]], **settings: Any) -> dict[str, Any]:
    """Merge rows into the record at a path: those with the same keys are replaced, new ones come last."""
    with alone(path):
        return _merged(path, keys, rows, settings)


def arrange(path: Path, **orders: Sequence[str]) -> None:
    """Bring the rows into the order of these keys' values, and the networks into that of theirs."""
    if not path.exists():
        return
    with alone(path):
        record = read(path)
        places = {key: {value: number for number, value in enumerate(order)} for key, order in orders.items()}
        record["rows"].sort(key=lambda row: [place.get(row[key], len(place)) for key, place in places.items()])
        told, place = record.get("networks", {}), places.get("network", {})
        record["networks"] = {name: told[name] for name in sorted(told, key=lambda name: place.get(name, len(place)))}
        _put(path, record)


def _put(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _merged(
    path: Path, keys: Sequence[str], rows: Sequence[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, Any]:
    record = read(path)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kept = {tuple(row[key] for key in keys): row for row in record["rows"]}
    for row in rows:
        kept[tuple(row[key] for key in keys)] = row | {"measured": now, "cpu": cpu_name()}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = record.get(name, {}) | value
        record[name] = value
    record |= {"threads": 1, "cpu": cpu_name(), "versions": versions(), "rows": list(kept.values())}
    _put(path, record)
    return record
