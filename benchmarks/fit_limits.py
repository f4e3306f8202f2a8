"""What the record of fit_cost.py is held to: a sentence for every limit that is missed or could not be looked at."""

from collections.abc import Iterator
from typing import Any

MLP, WIDE, CNN, TRANSFORMER = "MLP 8-50-50-1", "MLP 100-1024-1024-1", "CNN width 32", "transformer d 128"
EXACT = "richbll exact"
MOST_YARDS = {
    (CNN, EXACT): 2.0,
    (WIDE, EXACT): 6.0,
    (TRANSFORMER, EXACT): 3.6,
    (MLP, EXACT): 12.0,
    (CNN, "richbll sketch q=2048"): 1.4,
}
# By batches is the paper's route: gradients of minibatches, and a projection that is drawn as needed instead of stored.
# All rows at once is ours: it draws the projection once, where the gradients of all rows fit into memory.
TIMES_FASTER = {
    (CNN, "TRAK q=2048, by batches"): 6.0,
    (TRANSFORMER, "TRAK q=2048, by batches"): 10.0,
    (CNN, "TRAK q=2048"): 6.0,
    (TRANSFORMER, "TRAK q=2048"): 10.0,
    (WIDE, "TRAK q=512"): 50.0,
}
MOST_ERROR = {"variance_error": 1e-4, "added_error": 1e-3}
WITHOUT_SKETCH = (EXACT, "richbll cross")
LEAST_SPEEDUP = 1.7  # of two processes on the CNN
NEARLY_ALL = 0.95  # of the parameters: a Kron that covers fewer is not the same thing

Rows = dict[tuple[str, str], dict[str, Any]]


def missed(record: dict[str, Any], quick: bool = False) -> tuple[list[str], list[str]]:
    """Limits that are missed, and those without a row to look at. A quick run is held to its errors only."""
    rows = by_name(record)
    broken = list(errors_too_large(rows))
    unknown: list[str] = []
    if quick:
        return broken, []
    for found in (yards_above(rows), slower_than_trak(rows), above_laplace(rows)):
        for known, sentence in found:
            (broken if known else unknown).append(sentence)
    return broken, unknown


def by_name(record: dict[str, Any]) -> Rows:
    return {(row["network"], row["method"]): row for row in record["rows"]}


def errors_too_large(rows: Rows) -> Iterator[str]:
    for (network, method), row in rows.items():
        for name, most in MOST_ERROR.items() if method in WITHOUT_SKETCH else ():
            if row.get(name) is not None and not row[name] < most:
                yield f"{method} on {network}: {name.replace('_', ' ')} {row[name]:.2g}, limit {most:g}"


def yards_to_L(rows: Rows, network: str, method: str) -> float | None:
    """From (model, data) to L."""
    row = rows.get((network, method), {})
    taken: float | None = row.get("yards_to_L", row.get("yards"))
    return taken


def yards_above(rows: Rows) -> Iterator[tuple[bool, str]]:
    for (network, method), most in MOST_YARDS.items():
        taken = yards_to_L(rows, network, method)
        if taken is None:
            yield False, f"{method} on {network}: not measured, limit {most:g} yards"
        elif taken > most:
            yield True, f"{method} on {network}: {taken:.2f} yards to L, limit {most:g}"


def times_faster(rows: Rows) -> dict[tuple[str, str], float | None]:
    """TRAK's yards over those of the exact solver up to L, where both are measured."""
    found: dict[tuple[str, str], float | None] = {}
    for network, method in TIMES_FASTER:
        ours, theirs = yards_to_L(rows, network, EXACT), rows.get((network, method), {}).get("yards")
        found[network, method] = None if ours is None or theirs is None else theirs / ours
    return found


def slower_than_trak(rows: Rows) -> Iterator[tuple[bool, str]]:
    for (network, method), times in times_faster(rows).items():
        factor = TIMES_FASTER[network, method]
        if times is None:
            yield False, f"{EXACT} against {method} on {network}: not measured, limit {factor:g} times faster"
        elif times < factor:
            yield True, f"{EXACT} is {times:.1f} times faster than {method} on {network}, limit {factor:g}"


def above_laplace(rows: Rows) -> Iterator[tuple[bool, str]]:
    """The fit stays below Kron of (nearly) all weights and below function space, with the backends they come with."""
    for (network, method), row in rows.items():
        if not method.startswith(("laplace Kron", "laplace gp")) or row.get("covers", 0) < NEARLY_ALL:
            continue
        if "ASDL" in method:  # its rows are there to be seen
            continue
        ours = rows.get((network, EXACT), {}).get("yards")
        if ours is None or "yards" not in row:
            yield False, f"{EXACT} against {method} on {network}: not measured"
        elif ours >= row["yards"]:
            yield True, f"{EXACT} on {network}: {ours:.2f} yards, {method} {row['yards']:.2f}"
