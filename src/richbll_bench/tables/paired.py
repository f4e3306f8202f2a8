"""Two methods on the same splits: what the difference is, and how often the first is better."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from richbll_bench.errors import TableError
from richbll_bench.records import Record
from richbll_bench.tables.summary import summary
from richbll_bench.tables.table import Better, Cell, Column, Row, Table


@dataclass(frozen=True)
class Paired:
    """First minus second over the seeds that both have."""

    dataset: str
    metric: str
    first: str
    second: str
    mean: float
    error: float | None
    wins: int  # of the first
    ties: int
    losses: int
    num_unpaired: int  # seeds that only one of them has

    @property
    def num_splits(self) -> int:
        """How many seeds both have."""
        return self.wins + self.ties + self.losses


def comparison(
    records: Iterable[Record], first: str, second: str, *, dataset: str, metric: str, better: Better = "lower"
) -> Paired | None:
    """Compare two methods per split: mean difference, its standard error, and the number of wins. NaN loses.

    None where they share no split.
    """
    one: dict[int, float] = {}
    other: dict[int, float] = {}
    for record in records:
        if record.key.dataset == dataset and metric in record.metrics:
            for method, values in ((first, one), (second, other)):
                if record.key.method == method:
                    if record.key.seed in values:
                        raise TableError(f"Two records of {method} on {dataset} with seed {record.key.seed}.")
                    values[record.key.seed] = record.metrics[metric]
    common = sorted(one.keys() & other.keys())
    if not common:
        return None
    difference = summary([one[seed] - other[seed] for seed in common])
    losses = [(_loss(one[seed], better), _loss(other[seed], better)) for seed in common]
    assert difference.mean is not None
    return Paired(
        dataset,
        metric,
        first,
        second,
        mean=difference.mean,
        error=difference.error,
        wins=sum(a < b for a, b in losses),
        ties=sum(a == b for a, b in losses),
        losses=sum(a > b for a, b in losses),
        num_unpaired=len(one.keys() ^ other.keys()),
    )


def comparison_tables(pairs: Iterable[Paired | None], *, decimals: int = 4) -> list[Table]:
    """One row per comparison; no table where there are none."""
    columns = (
        Column("difference", "difference", decimals=decimals),
        Column("wins", "wins of the first"),
        Column("splits", "splits"),
    )
    rows = [
        Row(
            f"{pair.dataset}/{pair.metric}/{pair.first}/{pair.second}",
            f"{pair.dataset}, {pair.metric}: {pair.first} − {pair.second}",
            cells=(
                Cell(pair.mean, pair.error, pair.num_splits),
                Cell(text=f"{pair.wins}" + (f" ({pair.ties} ties)" if pair.ties else "")),
                Cell(text=f"{pair.num_splits}"),
            ),
        )
        for pair in pairs
        if pair is not None
    ]
    return [Table("paired", "Paired comparison on the same splits", columns, tuple(rows))] if rows else []


def _loss(value: float, better: Better) -> float:
    if math.isnan(value):
        return math.inf
    return value if better == "lower" else -value
