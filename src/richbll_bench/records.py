"""What experiments leave behind: one record per (experiment, data set, method, seed), in `<folder>/<experiment>.jsonl`.

Examples:
    >>> import tempfile
    >>> records = Records(Path(tempfile.mkdtemp()))
    >>> key, settings = Key("uci", "boston", "bll", seed=0), {"width": 50}
    >>> if not records.done(key, settings):
    ...     records.append(new_record(key, settings, metrics={"nll": 2.5}, seconds=1.0))
    >>> records.done(key, settings), records.done(key, {"width": 100})
    (True, False)
    >>> [record.metrics for record in records.read("uci")]
    [{'nll': 2.5}]
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from richbll_bench.errors import RecordError
from richbll_bench.json_lines import Object, append_line, read_lines
from richbll_bench.provenance import commit, versions

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Key:
    """What a record is about."""

    experiment: str
    dataset: str
    method: str
    seed: int


@dataclass(frozen=True)
class Record:
    """What came out, under which settings, from which code, when, and how long it took."""

    key: Key
    settings: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    time: str  # UTC
    commit: str | None
    versions: dict[str, str]


def new_record(key: Key, settings: Mapping[str, Any], metrics: Mapping[str, Any], seconds: float) -> Record:
    """A record of now and of this code. Metrics are scalars of any kind; settings must be what JSON can hold."""
    if not _NAME.fullmatch(key.experiment):
        raise RecordError(f"An experiment is named like a file, by letters, digits and . _ -; not {key.experiment!r}.")
    if not isinstance(key.seed, int):
        raise RecordError(f"A seed is a whole number, not {key.seed!r}.")
    try:
        numbers = {name: float(value) for name, value in metrics.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecordError(f"Metrics of {key} are not all numbers: {dict(metrics)!r}.") from error
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Record(key, _plain(settings), numbers, float(seconds), now, commit(), versions())


@dataclass(frozen=True)
class Records:
    """A folder of records."""

    folder: Path

    def path(self, experiment: str) -> Path:
        """The file of an experiment."""
        return Path(self.folder) / f"{experiment}.jsonl"

    def experiments(self) -> list[str]:
        """The experiments that have a file."""
        return sorted(path.stem for path in Path(self.folder).glob("*.jsonl"))

    def append(self, record: Record) -> None:
        """Add a record; it is on the disk, whole, when this returns. Several processes may do so at once."""
        append_line(self.path(record.key.experiment), _encode(record))

    def read(self, experiment: str, settings: Mapping[str, Any] | None = None) -> tuple[Record, ...]:
        """An experiment's records, oldest first; of those with equal key and settings the last one counts.

        With `settings`, only records in whose settings these occur.
        """
        wanted = _plain(settings or {})
        latest: dict[tuple[Key, str], Record] = {}
        for record in self._all(experiment):
            if _holds(record, wanted):
                latest[record.key, json.dumps(record.settings, sort_keys=True)] = record
        return tuple(latest.values())

    def done(self, key: Key, settings: Mapping[str, Any] | None = None) -> bool:
        """Whether there is a record of this key, so that a run that starts again can pass over it.

        With `settings`, only a record in whose settings these occur counts.
        """
        wanted = _plain(settings or {})
        return any(record.key == key and _holds(record, wanted) for record in self._all(key.experiment))

    def _all(self, experiment: str) -> tuple[Record, ...]:
        path = self.path(experiment).absolute()
        if not path.is_file():
            return ()
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=32)
def _read(path: Path, size: int, modified: int) -> tuple[Record, ...]:
    """All records of a file; size and time are arguments so that a file that has changed is read again."""
    return tuple(_decode(content, f"{path}, line {number}") for number, content in read_lines(path))


def _holds(record: Record, wanted: dict[str, Any]) -> bool:
    return all(name in record.settings and record.settings[name] == value for name, value in wanted.items())


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they will be read back: tuples are lists, keys are strings."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(dict(settings), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RecordError(f"Settings must be what JSON can hold ({error}): {dict(settings)!r}.") from error
    return read


def _encode(record: Record) -> Object:
    # JSON has no word for what is not finite
    metrics = {name: v if math.isfinite(v) else str(v) for name, v in record.metrics.items()}
    return {
        "experiment": record.key.experiment,
        "dataset": record.key.dataset,
        "method": record.key.method,
        "seed": record.key.seed,
        "settings": record.settings,
        "metrics": metrics,
        "seconds": record.seconds,
        "time": record.time,
        "commit": record.commit,
        "versions": record.versions,
    }


def _decode(content: Object, place: str) -> Record:
    try:
        return Record(
            key=Key(content["experiment"], content["dataset"], content["method"], content["seed"]),
            settings=content["settings"],
            metrics={name: float(value) for name, value in content["metrics"].items()},
            seconds=content["seconds"],
            time=content["time"],
            commit=content["commit"],
            versions=content["versions"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{place} is not a record ({type(error).__name__}: {error}). Mend or delete it.") from error
