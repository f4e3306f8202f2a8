"""Why the wheel's numbers are what they are: one choice changed at a time, for Rich-BLL and BLL, on other seeds.

Runs are compared by the logarithm of their regret, so that hard and easy difficulties count alike; a table has the
geometric mean over difficulties and seeds. BLL takes the τ² of {1, 3, 10, 100} that has the lowest one, Rich-BLL the
pair of such a τ² and of a ridge of {1e-2, 1, 100} (`bandits.chosen`). These are the menu, which has twice the seeds of
the other variants. The seeds begin at 1000: none is one of the table's.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from richbll_bench.bandits.agent import Kind, fingerprint
from richbll_bench.bandits.chosen import BASE
from richbll_bench.bandits.last_layer import LastLayer, LastLayerRule
from richbll_bench.bandits.noise import NoiseRule
from richbll_bench.bandits.training import PAPER
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.experiments.wheel import TINY, dataset, played
from richbll_bench.records import Record
from richbll_bench.tables import Cell, Column, Row, Table, summary

NAME = "wheel-why"
DELTAS = (0.5, 0.95, 0.99)
FIRST_SEED, HORIZON = 1000, 8_000
METHODS = {"rich_bll": "Rich-BLL", "bll": "BLL"}
PRIORS = (1.0, 3.0, 10.0, 100.0)
RIDGES = (1e-2, 1.0, 100.0)


def menu_name(prior_variance: float, ridge: float = BASE.ridge) -> str:
    """The variant that plays this pair."""
    parts = [f"ridge_{ridge:g}"] if ridge != BASE.ridge else []
    parts += [f"prior_{prior_variance:g}"] if prior_variance != BASE.prior_variance else []
    return "_".join(parts) or "base"


def _schedule(**changes: Any) -> LastLayerRule:
    return replace(BASE, schedule=replace(BASE.schedule, **changes))


def _pair(prior_variance: float, ridge: float) -> tuple[str, LastLayerRule]:
    title = f"ridge {ridge:g}, τ² = {prior_variance:g}"
    return title, replace(BASE, prior_variance=prior_variance, ridge=ridge)


VARIANTS: dict[str, tuple[str, LastLayerRule]] = {
    "base": ("τ² = 10, local noise with b₀ = 10,000", BASE),
    "prior_1": ("τ² = 1", replace(BASE, prior_variance=1.0)),
    "prior_3": ("τ² = 3", replace(BASE, prior_variance=3.0)),
    "prior_100": ("τ² = 100", replace(BASE, prior_variance=100.0)),
    "prior_10000": ("τ² = 10,000", replace(BASE, prior_variance=1e4)),
    "evidence": ("τ² by evidence", replace(BASE, prior_variance=None)),
    "standardised": ("τ² = 1 in units of the rewards' variance", replace(BASE, prior_variance=1.0, standardise=True)),
    "features_small": ("features × 0.1", replace(BASE, feature_scale=0.1)),
    "rolling": ("rolling noise, floor 1e-4", replace(BASE, noise=NoiseRule("rolling"))),
    "rolling_floor_1": ("rolling noise, floor 1", replace(BASE, noise=NoiseRule("rolling", floor=1.0))),
    "inverse_gamma": ("inverse-gamma noise, b₀ = 10,000", replace(BASE, noise=NoiseRule("inverse_gamma", scale=1e4))),
    "per_arm": ("rolling noise of each arm, floor 1e-4", replace(BASE, noise=NoiseRule("per_arm"))),
    "local_1000": ("local noise, b₀ = 1,000", replace(BASE, noise=NoiseRule("local", scale=1000.0))),
    "ridge_1e-4": ("ridge 1e-4", replace(BASE, ridge=1e-4)),
    "ridge_1": ("ridge 1", replace(BASE, ridge=1.0)),
    "arm_draws": ("every arm drawn by itself", replace(BASE, draws="arm")),
    "observation_noise": ("draws with observation noise", replace(BASE, observation_noise=True)),
    "no_restart": ("one network from the beginning", _schedule(restart=None)),
    "no_average": ("the weights, not their average, at 3e-3", _schedule(average=False, learning_rate=3e-3)),
    "no_hard_rows": ("batches drawn evenly", _schedule(hard=0.0)),
    "seldom": ("phases of a tenth of the contexts, as many steps", _schedule(growth=0.1, steps_per_context=1.0)),
    "paper_schedule": ("one network, 20 steps per 20 contexts, none of these", replace(BASE, schedule=PAPER)),
    "paper": (
        "the same, with rolling noise and τ² = 1: the paper's text",
        replace(BASE, schedule=PAPER, noise=NoiseRule("rolling"), prior_variance=1.0),
    ),
}
MENU = {menu_name(prior, ridge): _pair(prior, ridge) for ridge in RIDGES for prior in PRIORS}
_RICH_ALONE = set(MENU) - set(VARIANTS)  # a ridge is nothing to BLL
VARIANTS |= {name: pair for name, pair in MENU.items() if name not in VARIANTS}


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
        Job(
            NAME,
            dataset(delta),
            (method,),
            (seed,),
            shared | {"delta": delta, "variant": variant, "rule": fingerprint(VARIANTS[variant][1])},
            run,
        )
        for variant in (list(VARIANTS)[:2] if size.tiny else VARIANTS)
        for delta in (DELTAS[:1] if size.tiny else DELTAS)
        for method in METHODS
        if method == "rich_bll" or variant not in _RICH_ALONE
        for seed in range(FIRST_SEED, FIRST_SEED + _num_seeds(size, variant, method))
    ]


def _num_seeds(size: Size, variant: str, method: str) -> int:
    is_on_menu = variant in MENU and (method == "rich_bll" or VARIANTS[variant][1].ridge == BASE.ridge)
    return size.num_seeds * (2 if is_on_menu and not size.tiny else 1)


def _now(variant: str) -> str | None:
    return fingerprint(VARIANTS[variant][1]) if variant in VARIANTS else None


def _regrets(records: Sequence[Record], variant: str, method: str) -> dict[int, dict[float, float]]:
    """By seed and difficulty."""
    found: dict[int, dict[float, float]] = {}
    for record in records:
        if record.settings["variant"] == variant and record.key.method == method:
            found.setdefault(record.key.seed, {})[record.settings["delta"]] = record.metrics["regret"]
    return found


def _row(records: Sequence[Record], variant: str) -> Row:
    cells: list[Cell | None] = []
    for method in METHODS:
        found, base = (_regrets(records, name, method) for name in (variant, "base"))
        for delta in DELTAS:
            values = [of_seed[delta] for of_seed in found.values() if delta in of_seed]
            cells.append(summary(values) if values else None)
        whole = {seed: of_seed for seed, of_seed in found.items() if len(of_seed) == len(DELTAS)}
        cells.append(_geometric_mean([value for of_seed in whole.values() for value in of_seed.values()]))
        both = [(value, base.get(seed, {}).get(delta)) for seed in whole for delta, value in whole[seed].items()]
        cells.append(_geometric_mean([value / other for value, other in both if other is not None]))
    locked = [record.metrics["locked_in"] for record in records if record.settings["variant"] == variant]
    cells.append(Cell(text=f"{sum(locked):.0f} of {len(locked)}"))
    return Row(variant, VARIANTS[variant][0], 0, tuple(cells))


def _geometric_mean(values: Sequence[float]) -> Cell | None:
    return Cell(math.exp(sum(map(math.log, values)) / len(values)), count=len(values)) if values else None


def _columns(method: str, title: str) -> list[Column]:
    found = [
        Column(f"{method}/{delta}", f"{title}, δ = {delta:g}", dataset(delta), "regret", "lower", decimals=1)
        for delta in DELTAS
    ]
    mean = Column(f"{method}/mean", f"{title}, geometric mean", better="lower", decimals=2)
    return [*found, mean, Column(f"{method}/ratio", f"{title}, ÷ base", better="lower", decimals=2)]


def _tables(records: Sequence[Record]) -> list[Table]:
    records = [record for record in records if record.settings["rule"] == _now(record.settings["variant"])]
    there = [variant for variant in VARIANTS if any(record.settings["variant"] == variant for record in records)]
    if not there:
        return []
    columns = [column for method, title in METHODS.items() for column in _columns(method, title)]
    columns.append(Column("locked_in", "locked in"))
    notes = (
        f"After {HORIZON:,} contexts, in percent of uniform play; seeds from {FIRST_SEED} on, none of the table's.",
        "Geometric means over the seeds that have all difficulties; ÷ base is that of the ratios on the same runs.",
    )
    rows = tuple(_row(records, variant) for variant in there)
    return [Table("wheel_why", "One choice changed at a time", tuple(columns), rows, notes)]


experiment = Experiment(
    NAME,
    "Why: the wheel's choices",
    "The rule of Rich-BLL and BLL with one choice changed at a time, on seeds that the table does not use.",
    2,
    _jobs,
    _tables,
)
