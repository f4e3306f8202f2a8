"""What it took to make some records, and with which code they were made."""

from collections.abc import Sequence
from dataclasses import dataclass

from richbll_bench.records import Record


@dataclass(frozen=True)
class Cost:
    """In words, for a reader; a record that names no commit was made outside a checkout."""

    num_records: int
    num_seeds: int
    seconds: float
    duration: str
    dates: str  # "2026-11-15", or "2026-11-15 to 2026-11-17"
    commits: tuple[str, ...]
    versions: tuple[str, ...]


def cost(records: Sequence[Record]) -> Cost:
    """Summed over the records."""
    seconds = sum(record.seconds for record in records)
    days = sorted({record.time[:10] for record in records})
    versions: dict[str, set[str]] = {}
    for record in records:
        for name, version in record.versions.items():
            versions.setdefault(name, set()).add(version)
    return Cost(
        num_records=len(records),
        num_seeds=len({record.key.seed for record in records}),
        seconds=seconds,
        duration=duration(seconds),
        dates=" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        commits=tuple(dict.fromkeys(_short(record.commit) for record in records)),
        versions=tuple(f"{name} {', '.join(sorted(found))}" for name, found in versions.items()),
    )


def duration(seconds: float) -> str:
    """In the two largest units.

    Examples:
        >>> duration(0.25), duration(75), duration(7265), duration(200000)
        ('0.2 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    rest, parts = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        parts.append((count, unit))
    largest = next(i for i, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[largest : largest + 2] if count)


def _short(commit: str | None) -> str:
    if commit is None:
        return "no commit"
    digits, changed, _ = commit.partition("+")
    return digits[:10] + (" with changes" if changed else "")
