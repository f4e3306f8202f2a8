"""`richbll bench wheel` and `wheel-why`, tiny: records, tables, curves, and going on after a stop."""

import io
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from richbll_bench import experiments
from richbll_bench.bandits import agents
from richbll_bench.bandits.agent import fingerprint
from richbll_bench.bandits.chosen import BLL, FIRST_BLL, FIRST_RICH_BLL, RICH_BLL, RICH_PAIR
from richbll_bench.engine import run
from richbll_bench.experiment import Size
from richbll_bench.experiments import wheel, wheel_rate, wheel_why
from richbll_bench.records import Key, Records, new_record
from richbll_bench.tables import markdown


def test_a_tiny_wheel(tmp_path: Path) -> None:
    experiment, records = experiments.load("wheel"), Records(tmp_path)
    names = ("bll", "lin_full_post", "uniform")
    assert run(experiment, Size(1, tiny=True, methods=names), records, progress=False) == 3
    assert run(experiment, Size(2, tiny=True, methods=("uniform",)), records, progress=False) == 1
    found = records.read("wheel")
    assert all(np.isfinite(value) for record in found for value in record.metrics.values())
    tables = experiment.tables(found)
    assert tables[0].cell("bll", "delta_0.5") is not None
    assert "LinDiagPost" in markdown(tables[0])
    (figure,) = experiment.figures(found)
    out = io.BytesIO()
    figure.draw().savefig(out, dpi=40)
    assert out.getvalue().startswith(b"\x89PNG")
    assert experiment.tables([]) == experiment.figures([]) == []


def test_the_table_has_ten_seeds_of_the_main_agents_and_five_of_the_others() -> None:
    jobs = wheel.experiment.jobs(Size(10))
    counts = {name: sum(job.methods == (name,) for job in jobs) for name in agents.names()}
    assert counts == {name: 5 * (10 if name in wheel.MAIN else 5) for name in agents.names()}
    assert {job.settings["contexts"] for job in jobs} == {80_000}


def test_pairs_are_compared(tmp_path: Path) -> None:
    records = [
        new_record(
            Key("wheel", "wheel_0.9", name, seed),
            {"rule": rule or agents.load(name).fingerprint},
            {"regret": regret + seed, "misses": 1, "curve_100": 2},
            1.0,
        )
        for name, regret, rule in (("rich_bll", 1.0, ""), ("bll", 2.0, ""), ("rich_bll", 9.0, "of another rule"))
        for seed in range(3)
    ]
    pairs = next(table for table in wheel.experiment.tables(records) if table.name == "paired")
    assert pairs.rows[0].cells[0].mean == pytest.approx(-1)
    assert wheel.experiment.tables(records[6:]) == []


def test_rules_that_were_played_before_have_a_table_of_their_own() -> None:
    rules = {"rich_bll": (RICH_BLL, FIRST_RICH_BLL), "bll": (BLL, FIRST_BLL)}
    records = [
        new_record(Key("wheel", "wheel_0.9", name, 0), {"rule": fingerprint(rule)}, {"regret": regret}, 1.0)
        for name, pair in rules.items()
        for regret, rule in enumerate((*pair, "of nobody"), start=1)
    ]
    tables = {table.name: table for table in wheel.experiment.tables(records)}
    assert [row.title for row in tables["earlier"].rows] == ["Rich-BLL, τ² = 3, ridge 1e-2", "NNGP (BLL), τ² = 100"]
    assert [row.cells[2].mean for row in tables["earlier"].rows] == [2, 2]
    now = [record for record in records if record.metrics["regret"] == 1]
    assert "earlier" not in {table.name for table in wheel.experiment.tables(now)}


def test_a_tiny_why_on_seeds_that_the_table_does_not_use(tmp_path: Path) -> None:
    experiment, records = experiments.load("wheel-why"), Records(tmp_path)
    assert run(experiment, Size(1, tiny=True), records, progress=False) == 4
    found = records.read("wheel-why")
    assert {record.key.seed for record in found} == {wheel_why.FIRST_SEED}
    (table,) = experiment.tables(found)
    assert [row.name for row in table.rows] == ["base", "prior_1"]
    assert experiment.tables([]) == []


METHODS = ("rich_bll", "bll")
PAIRS = {name: 2 for name in wheel_why.MENU if name.count("_") == 3}  # ridge and prior


def test_a_tiny_rate(tmp_path: Path) -> None:
    experiment, records = experiments.load("wheel-rate"), Records(tmp_path)
    assert run(experiment, Size(1, tiny=True), records, progress=False) == 3
    (table,) = experiment.tables(records.read("wheel-rate"))
    assert [row.name for row in table.rows] == ["decay_0.25", "decay_0.5", "decay_1"]
    assert experiment.tables([]) == []
    jobs = experiment.jobs(Size(2))
    assert {seed for job in jobs for seed in job.seeds} == {1000, 1001}
    assert {job.settings["contexts"] for job in jobs} == {wheel.HORIZON}


def test_the_rate_is_the_best_on_record() -> None:
    records = Records(Path(__file__).parents[3] / "records").read("wheel-rate")
    (table,) = wheel_rate.experiment.tables(records)
    means = {decay: table.cell(wheel_rate.method(decay), "mean") for decay in wheel_rate.DECAYS}
    assert {cell.count for cell in means.values()} == {6}  # three difficulties, two seeds
    assert min(means, key=lambda decay: means[decay].mean) == RICH_BLL.schedule.decay == BLL.schedule.decay
    assert replace(RICH_BLL, schedule=RICH_PAIR.schedule) == RICH_PAIR


SEVERAL = PAIRS | {
    "no_average": 2,
    "seldom": 2,
    "standardised": 2,
    "paper_schedule": 8,
    "paper": 11,
}  # what their titles say


def flat(rule: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in asdict(rule).items():
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return found


@pytest.mark.parametrize("name", [name for name in wheel_why.VARIANTS if name != "base"])
def test_a_variant_changes_one_thing_or_says_so(name: str) -> None:
    base, rule = flat(wheel_why.BASE), flat(wheel_why.VARIANTS[name][1])
    changed = [key for key in base if base[key] != rule[key]]
    if all(key.startswith("noise.") for key in changed):  # a noise comes with its own constants
        assert changed
    else:
        assert len(changed) == SEVERAL.get(name, 1), changed


def test_the_menu_has_every_pair_and_bll_only_the_prior_variances() -> None:
    assert len(wheel_why.MENU) == 12
    pairs = {(rule.prior_variance, rule.ridge) for _, rule in wheel_why.MENU.values()}
    assert pairs == {(prior, ridge) for prior in (1.0, 3.0, 10.0, 100.0) for ridge in (1e-2, 1.0, 100.0)}
    jobs = wheel_why.experiment.jobs(Size(2))
    seeds = {method: {(j.settings["variant"], *j.seeds) for j in jobs if j.methods == (method,)} for method in METHODS}
    for name in wheel_why.MENU:
        assert {(name, 1000 + k) for k in range(4)} <= seeds["rich_bll"]
    assert {name for name, _ in seeds["bll"]} == set(wheel_why.VARIANTS) - {
        name for name in wheel_why.MENU if name.startswith("ridge_") and name != "ridge_1"
    }
    assert ("no_restart", 1002) not in seeds["rich_bll"]


def test_the_rules_are_the_best_of_the_menu_on_record() -> None:
    assert replace(BLL, enrich=True, prior_variance=RICH_BLL.prior_variance, ridge=RICH_BLL.ridge) == RICH_BLL
    records = Records(Path(__file__).parents[3] / "records").read("wheel-why")
    (table,) = wheel_why.experiment.tables(records)
    plain = [wheel_why.menu_name(prior) for prior in wheel_why.PRIORS]
    for rule, method, names in ((RICH_BLL, "rich_bll", list(wheel_why.MENU)), (BLL, "bll", plain)):
        assert {table.cell(name, f"{method}/mean").count for name in names} == {12}  # three difficulties, four seeds
        best = min(names, key=lambda name: table.cell(name, f"{method}/mean").mean)
        chosen = wheel_why.VARIANTS[best][1]
        assert (chosen.prior_variance, chosen.ridge) == (rule.prior_variance, rule.ridge)
