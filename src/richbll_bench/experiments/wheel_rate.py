"""How fast the rate of training should fall with the rows: Rich-BLL's rule over all 80,000 contexts, on other seeds.

Late in a game of up to δ = 0.9 all that is lost is lost by the network, at the edges between the arms of high rewards:
play without any draws loses as much. The rate of warm steps falls as N^(-decay) from 4,000 rows on; Rich-BLL and BLL
take the power of {0.25, 0.5, 1} that has the lowest geometric mean of regrets here (`bandits.chosen`). The seeds begin
at 1000: none is one of the table's.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from richbll_bench.bandits.agent import Kind, fingerprint
from richbll_bench.bandits.chosen import RICH_PAIR
from richbll_bench.bandits.last_layer import LastLayer, LastLayerRule
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.experiments.wheel import HORIZON, TINY, dataset, played
from richbll_bench.experiments.wheel_why import FIRST_SEED
from richbll_bench.records import Record
from richbll_bench.tables import Cell, Column, Row, Table, summary

NAME = "wheel-rate"
DELTAS = (0.5, 0.7, 0.9)
DECAYS = (0.25, 0.5, 1.0)


def with_decay(rule: LastLayerRule, decay: float) -> LastLayerRule:
    """The same rule, with a rate that falls by another power."""
    return replace(rule, schedule=replace(rule.schedule, decay=decay))


def method(decay: float) -> str:
    """Its name in the records."""
    return f"decay_{decay:g}"


_RULES = {method(decay): with_decay(RICH_PAIR, decay) for decay in DECAYS}


def run(job: Job) -> list[Record]:
    """One power at one difficulty, for one seed."""
    return [
        played(job, name, seed, Kind(name, "", partial(LastLayer, rule=_RULES[name])))
        for name in job.methods
        for seed in job.seeds
    ]


def _jobs(size: Size) -> list[Job]:
    return [
        Job(
            NAME,
            dataset(delta),
            (name,),
            (seed,),
            {
                "tiny": size.tiny,
                "contexts": TINY if size.tiny else HORIZON,
                "delta": delta,
                "rule": fingerprint(_RULES[name]),
            },
            run,
        )
        for delta in (DELTAS[:1] if size.tiny else DELTAS)
        for name in _RULES
        for seed in range(FIRST_SEED, FIRST_SEED + size.num_seeds)
    ]


def _tables(records: Sequence[Record]) -> list[Table]:
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.settings["rule"] == fingerprint(_RULES.get(record.key.method)):
            by_place = found.setdefault(record.key.method, {})
            by_place.setdefault(record.key.dataset, []).append(record.metrics["regret"])
    if not found:
        return []
    rows = tuple(_row(decay, found[method(decay)]) for decay in DECAYS if method(decay) in found)
    columns = [
        Column(f"{delta:g}", f"δ = {delta:g}", dataset(delta), "regret", "lower", decimals=3) for delta in DELTAS
    ]
    columns.append(Column("mean", "geometric mean", better="lower", decimals=3))
    notes = (
        f"After {HORIZON:,} contexts, in percent of uniform play; seeds from {FIRST_SEED} on, none of the table's.",
    )
    return [Table("wheel_rate", "The rate falls as N to the power of −", tuple(columns), rows, notes)]


def _row(decay: float, by_place: dict[str, list[float]]) -> Row:
    cells = [summary(by_place[dataset(delta)]) if dataset(delta) in by_place else None for delta in DELTAS]
    values = [value for some in by_place.values() for value in some]
    mean = Cell(math.exp(sum(map(math.log, values)) / len(values)), count=len(values))
    return Row(method(decay), f"{decay:g}", 0, (*cells, mean))


experiment = Experiment(
    NAME,
    "How fast the wheel's rate falls",
    "Rich-BLL's rule over all contexts, with three powers by which the rate of training falls with the rows, on seeds "
    "that the table does not use.",
    2,
    _jobs,
    _tables,
)
