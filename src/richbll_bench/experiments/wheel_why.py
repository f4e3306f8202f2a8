"""Why the wheel's numbers are what they are: one choice changed at a time, for Rich-BLL and BLL, on other seeds.

The agents' rule (`bandits.chosen`) is to be the variant with the lowest regret of BLL and Rich-BLL together, the mean
over difficulties and seeds, among those that lock in on no seed. The seeds begin at 1000: none is one of the table's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import CHOSEN
from richbll_bench.bandits.last_layer import LastLayer, LastLayerRule
from richbll_bench.bandits.noise import NoiseRule
from richbll_bench.bandits.training import PAPER
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.experiments.wheel import TINY, dataset, played
from richbll_bench.records import Record
from richbll_bench.tables import Cell, Column, Row, Table, summary

NAME = "wheel-why"
DELTAS = (0.5, 0.95)
FIRST_SEED, HORIZON = 1000, 4_000
METHODS = {"rich_bll": "Rich-BLL", "bll": "BLL"}

VARIANTS: dict[str, tuple[str, LastLayerRule]] = {
    "chosen": ("the rule of the table", CHOSEN),
    "paper_schedule": ("one network trained on and on, 20 steps per 20 contexts", replace(CHOSEN, schedule=PAPER)),
    "paper": (
        "the same, with rolling noise and τ² = 1: the paper's text",
        replace(CHOSEN, schedule=PAPER, noise=NoiseRule("rolling"), prior_variance=1.0),
    ),
    "rolling": ("rolling noise, floor 1e-4", replace(CHOSEN, noise=NoiseRule("rolling"))),
    "rolling_floor_1": ("rolling noise, floor 1", replace(CHOSEN, noise=NoiseRule("rolling", floor=1.0))),
    "inverse_gamma": ("inverse-gamma noise", replace(CHOSEN, noise=NoiseRule("inverse_gamma", scale=3000.0))),
    "per_arm": ("rolling noise of each arm", replace(CHOSEN, noise=NoiseRule("per_arm"))),
    "local_300": ("local noise, b₀ = 300", replace(CHOSEN, noise=NoiseRule("local", scale=300.0))),
    "local_30000": ("local noise, b₀ = 30,000", replace(CHOSEN, noise=NoiseRule("local", scale=30_000.0))),
    "prior_1": ("τ² = 1", replace(CHOSEN, prior_variance=1.0)),
    "prior_10000": ("τ² = 10,000", replace(CHOSEN, prior_variance=1e4)),
    "evidence": ("τ² by evidence", replace(CHOSEN, prior_variance=None)),
    "standardised": ("τ² = 1 in the rewards' variance", replace(CHOSEN, prior_variance=1.0, standardise=True)),
    "features_small": ("features × 0.1", replace(CHOSEN, feature_scale=0.1)),
    "ridge_1e-4": ("ridge 1e-4", replace(CHOSEN, ridge=1e-4)),
    "ridge_1": ("ridge 1", replace(CHOSEN, ridge=1.0)),
    "arm_draws": ("every arm drawn by itself", replace(CHOSEN, draws="arm")),
    "observation_noise": ("draws with observation noise", replace(CHOSEN, observation_noise=True)),
    "often": ("phases of 20 contexts throughout", replace(CHOSEN, schedule=replace(CHOSEN.schedule, growth=0.0))),
    "seldom": ("phases of a tenth of the contexts", replace(CHOSEN, schedule=replace(CHOSEN.schedule, growth=0.1))),
}


def run(job: Job) -> list[Record]:
    """One variant at one difficulty, for one seed."""
    _, rule = VARIANTS[job.settings["variant"]]
    kinds = {
        name: Kind(METHODS[name], "", partial(LastLayer, rule=replace(rule, enrich=name == "rich_bll")))
        for name in job.methods
    }
    return [played(job, name, seed, kinds[name]) for name in job.methods for seed in job.seeds]


def _jobs(size: Size) -> list[Job]:
    shared = {"tiny": size.tiny, "contexts": TINY if size.tiny else HORIZON}
    return [
        Job(NAME, dataset(delta), (method,), (seed,), shared | {"delta": delta, "variant": variant}, run)
        for variant in (list(VARIANTS)[:2] if size.tiny else VARIANTS)
        for delta in (DELTAS[:1] if size.tiny else DELTAS)
        for method in METHODS
        for seed in range(FIRST_SEED, FIRST_SEED + size.num_seeds)
    ]


def _values(records: Sequence[Record], variant: str, delta: float, method: str, metric: str) -> list[float]:
    return [
        record.metrics[metric]
        for record in records
        if record.settings["variant"] == variant
        and record.key.dataset == dataset(delta)
        and record.key.method == method
    ]


def _row(records: Sequence[Record], variant: str) -> Row:
    cells: list[Cell | None] = []
    for method in METHODS:
        for delta in DELTAS:
            values = _values(records, variant, delta, method, "regret")
            cells.append(summary(values) if values else None)
    everything = [record for record in records if record.settings["variant"] == variant]
    cells.append(summary([record.metrics["regret"] for record in everything]))
    cells.append(Cell(text=f"{sum(record.metrics['locked_in'] for record in everything):.0f} of {len(everything)}"))
    return Row(variant, VARIANTS[variant][0], 0, tuple(cells))


def _tables(records: Sequence[Record]) -> list[Table]:
    there = [variant for variant in VARIANTS if any(record.settings["variant"] == variant for record in records)]
    if not there:
        return []
    columns = [
        Column(f"{method}/{delta}", f"{title}, δ = {delta:g}", dataset(delta), "regret", "lower", decimals=1)
        for method, title in METHODS.items()
        for delta in DELTAS
    ]
    columns += [Column("mean", "mean of all", decimals=1), Column("locked_in", "locked in")]
    note = f"After {HORIZON:,} contexts, in percent of uniform play; seeds from {FIRST_SEED} on, none of the table's."
    rows = tuple(_row(records, variant) for variant in there)
    return [Table("wheel_why", "One choice changed at a time", tuple(columns), rows, (note,))]


experiment = Experiment(
    NAME,
    "Why: the wheel's choices",
    "The rule of Rich-BLL and BLL with one choice changed at a time, on seeds that the table does not use.",
    2,
    _jobs,
    _tables,
)
