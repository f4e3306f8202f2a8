"""The paper's table of cumulative regret on the wheel bandit: every agent on the same contexts.

The table is at 80,000 contexts, which the paper's values fit; its text speaks of 16,000, where the same runs are read
too.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from richbll_bench.bandits import agents
from richbll_bench.bandits.agent import Kind, fingerprint
from richbll_bench.bandits.chosen import BASE, FIRST_BLL, FIRST_RICH_BLL
from richbll_bench.bandits.playing import play
from richbll_bench.bandits.wheel import NUM_ARMS, Wheel
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.looks import COLORS
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Key, Record, new_record
from richbll_bench.tables import Cell, Column, Row, Table, beside, comparison, comparison_tables, ours, summary
from richbll_bench.tables.table import Better

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NAME = "wheel"
DELTAS = (0.5, 0.7, 0.9, 0.95, 0.99)
HORIZON, SHORT, TINY = 80_000, 16_000, 75
MAIN = ("rich_bll", "rich_bll_s", "bll")  # ten seeds; five for the others
_FEWER_SEEDS = 5
_COMPARED = (("rich_bll", "bll"), ("rich_bll_s", "bll"), ("rich_bll", "vbll"))
_EARLIER = {  # rules that agents have had before; their records stay
    fingerprint(FIRST_RICH_BLL): "Rich-BLL, τ² = 3, ridge 1e-2",
    fingerprint(replace(FIRST_RICH_BLL, posterior_rows=2048)): "Rich-BLL (S), τ² = 3, ridge 1e-2",
    fingerprint(("sampler", FIRST_RICH_BLL)): "Rich-BLL, by ThompsonSampler, τ² = 3, ridge 1e-2",
    fingerprint(FIRST_BLL): "NNGP (BLL), τ² = 100",
    fingerprint(BASE.schedule): "VBLL",
}
_MORE: tuple[tuple[str, str, Better | None, int], ...] = (
    (f"regret_{SHORT}", f"Cumulative regret after {SHORT:,} contexts, the horizon of the paper's text", "lower", 2),
    (
        "curve_5000",
        "Cumulative regret after 5,000 contexts: a sixteenth of this is part of that after 80,000",
        "lower",
        2,
    ),
    ("regret_inside", "Regret inside of the wheel alone, where the safe arm is best by 0.2", "lower", 2),
    ("regret_outside", "Regret outside alone, where one arm pays 50", "lower", 2),
    ("misses", "Contexts outside of the wheel whose 50 was missed", "lower", 0),
    ("simple_regret", "Simple regret at the end, of the arms that are best by the mean", "lower", 2),
    ("locked_in", "Share of runs that end by always playing safe", "lower", 2),
    ("step_us", "Processor time per context, microseconds", None, 0),
    ("train_share", "Share of it for training", None, 2),
    ("posterior_share", "Share of it for the posterior", None, 2),
    ("act_share", "Share of it for draws", None, 2),
)


def dataset(delta: float) -> str:
    """The name of a difficulty in the records."""
    return f"wheel_{delta:g}"


def steps_of_curve(horizon: int) -> list[int]:
    """Where a curve is kept: 100, 200, 500, 1000 and so on, and the end."""
    steps = [digit * 10**power for power in range(2, 6) for digit in (1, 2, 5)]
    return [step for step in steps if step < horizon] + [horizon]


def played(job: Job, name: str, seed: int, kind: Kind) -> Record:
    """One run of an agent, as a record."""
    horizon, began = job.settings["contexts"], time.process_time()
    agent = kind.make(seed, 2, NUM_ARMS)
    run = play(agent, Wheel(job.settings["delta"]), horizon, seed)
    seconds = time.process_time() - began
    metrics = run.metrics([SHORT] if horizon > SHORT else [], steps_of_curve(horizon))
    metrics["step_us"] = 1e6 * seconds / horizon
    for part in ("train", "posterior", "act"):
        metrics[f"{part}_share"] = agent.seconds.spent.get(part, 0.0) / seconds
    return new_record(Key(job.experiment, job.dataset, name, seed), job.settings, metrics, seconds)


def run(job: Job) -> list[Record]:
    """The agents of a job, seed by seed."""
    return [played(job, name, seed, agents.load(name)) for name in job.methods for seed in job.seeds]


def _jobs(size: Size) -> list[Job]:
    horizon = TINY if size.tiny else HORIZON
    return [
        Job(
            NAME,
            dataset(delta),
            (name,),
            (seed,),
            {"tiny": size.tiny, "contexts": horizon, "delta": delta, "rule": agents.load(name).fingerprint},
            run,
            agents.load(name).cost,
        )
        for delta in (DELTAS[:1] if size.tiny else DELTAS)
        for name in (*MAIN, *(name for name in agents.names() if name not in MAIN))
        for seed in range(size.num_seeds if name in MAIN else min(size.num_seeds, _FEWER_SEEDS))
    ]


def _others(records: Sequence[Record]) -> list[Row]:
    """Agents on record that the paper's table does not have."""
    there = {record.key.method for record in records} - {row.name for row in paper_table("wheel_bandit").rows}
    return [Row(name, agents.load(name).title, 1) for name in agents.names() if name in there]


def _current(records: Sequence[Record]) -> list[Record]:
    """Without those of rules that are no longer an agent's."""
    known = {name: agents.load(name).fingerprint for name in agents.names()}
    return [record for record in records if record.settings["rule"] == known.get(record.key.method)]


def _tables(everything: Sequence[Record]) -> list[Table]:
    if not (records := _current(everything)):
        return []
    paper = paper_table("wheel_bandit")
    found = [beside(ours(records, paper, extra=_others(records)), paper)]
    there = {record.key.method for record in records}
    notes = tuple(f"{agents.load(name).title}: {agents.load(name).source}" for name in agents.names() if name in there)
    found = [replace(found[0], notes=(*found[0].notes, *notes))]
    pairs = [
        comparison(records, first, second, dataset=dataset(delta), metric="regret")
        for first, second in _COMPARED
        for delta in DELTAS
    ]
    found += [*comparison_tables(pairs, decimals=3), *_over_all(records), *_earlier(everything)]
    for metric, title, better, decimals in _MORE:
        if any(metric in record.metrics for record in records):
            columns = tuple(replace(c, metric=metric, better=better, decimals=decimals) for c in paper.columns)
            found.append(_of_columns(records, paper, f"wheel_{metric}", title, columns))
    return found


def _earlier(records: Sequence[Record]) -> list[Table]:
    """What agents have lost by rules that they no longer play."""
    current = {id(record) for record in _current(records)}
    found: dict[str, dict[str, list[float]]] = {}
    for record in records:
        title = _EARLIER.get(record.settings["rule"])
        if id(record) not in current and title is not None:
            found.setdefault(title, {}).setdefault(record.key.dataset, []).append(record.metrics["regret"])
    rows = tuple(
        Row(title, title, 0, tuple(summary(of[dataset(delta)]) if dataset(delta) in of else None for delta in DELTAS))
        for title, of in found.items()
    )
    columns = tuple(
        Column(f"{delta:g}", f"δ = {delta:g}", dataset(delta), "regret", "lower", decimals=2) for delta in DELTAS
    )
    note = "The first table: a rate that falls as N^(-1/4) for all, and no ridge to choose. The contexts are the same."
    return [Table("earlier", "Rules that were played before", columns, rows, (note,))] if rows else []


def _over_all(records: Sequence[Record]) -> list[Table]:
    """Two agents over all difficulties, by the logarithm of the ratio: hard and easy ones count alike."""
    regret = {(r.key.dataset, r.key.method, r.key.seed): r.metrics["regret"] for r in records}
    rows = []
    for first, second in _COMPARED:
        ratios: dict[int, list[float]] = {}
        for (place, name, seed), value in regret.items():
            if name == first and (other := regret.get((place, second, seed))) is not None:
                ratios.setdefault(seed, []).append(math.log(value / other))
        if ratios:
            runs = [ratio for of_seed in ratios.values() for ratio in of_seed]
            wins = Cell(text=f"{sum(ratio < 0 for ratio in runs)} of {len(runs)}")
            cell = summary([sum(of_seed) / len(of_seed) for of_seed in ratios.values()])
            rows.append(Row(f"{first}/{second}", f"{first}, {second}", 0, (cell, wins)))
    columns = (Column("log_ratio", "log of the ratio of regrets", decimals=3), Column("wins", "wins of the first"))
    note = "Mean over difficulties, then mean ± standard error over seeds; below zero the first is better."
    return [Table("over_all", "Two agents over all difficulties", columns, tuple(rows), (note,))] if rows else []


def _of_columns(records: Sequence[Record], like: Table, name: str, title: str, columns: tuple[Column, ...]) -> Table:
    """All agents in other columns than the paper's."""
    rows = tuple(replace(row, cells=(None,) * len(columns)) for row in like.rows)
    return ours(records, replace(like, name=name, title=title, columns=columns, rows=rows), extra=_others(records))


def _figures(records: Sequence[Record]) -> list[Figure]:
    if not (records := _current(records)):
        return []
    caption = (
        "Cumulative regret so far, in percent of uniform play, against the number of contexts; means over seeds with a "
        "band of one standard error. Grey: always the safe arm."
    )
    return [Figure("wheel_regret", "Regret as it goes", caption, lambda: _draw(records))]


def _draw(records: Sequence[Record]) -> "Drawing":
    from matplotlib.figure import Figure as Drawing

    there = [delta for delta in DELTAS if any(record.key.dataset == dataset(delta) for record in records)]
    figure = Drawing(figsize=(3.2 * len(there), 3.2), layout="constrained")
    for axes, delta in zip(figure.subplots(1, len(there), squeeze=False)[0], there, strict=True):
        _curves(axes, [record for record in records if record.key.dataset == dataset(delta)])
        wheel = Wheel(delta)
        axes.axhline(100 * wheel.safe_regret / wheel.uniform_regret, color="0.8", lw=1)
        axes.set(xscale="log", yscale="log", title=f"δ = {delta:g}", xlabel="contexts")
    axes.legend(frameon=False, fontsize=7)
    return figure


def _curves(axes: "Axes", records: Sequence[Record]) -> None:
    for name in sorted({record.key.method for record in records}, key=lambda name: (name not in MAIN, name)):
        runs = [record.metrics for record in records if record.key.method == name]
        steps = sorted(int(key.removeprefix("curve_")) for key in runs[0] if key.startswith("curve_"))
        cells = [summary([metrics[f"curve_{step}"] for metrics in runs]) for step in steps]
        means, errors = [cell.mean or 0.0 for cell in cells], [cell.error or 0.0 for cell in cells]
        (line,) = axes.plot(steps, means, label=agents.load(name).title, color=COLORS.get(name), lw=1.2)
        lower = [max(mean - error, 1e-3) for mean, error in zip(means, errors, strict=True)]
        upper = [mean + error for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(steps, lower, upper, color=line.get_color(), alpha=0.2, lw=0)


experiment = Experiment(
    NAME,
    "The wheel bandit",
    "Five arms, contexts on a disk, and an arm that pays 50 only outside of radius δ. Cumulative regret after "
    f"{HORIZON:,} contexts in percent of uniform play; all agents of a seed see the same contexts.",
    10,
    _jobs,
    _tables,
    _figures,
)
