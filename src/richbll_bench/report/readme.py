"""The tables of the main experiments, in markdown, for the README."""

from collections.abc import Mapping

from richbll_bench import experiments
from richbll_bench.records import Records
from richbll_bench.report.cost import cost
from richbll_bench.tables import markdown

MAIN = {"uci": 1, "wine-ood": 1, "wheel": 1, "cifar": 2}  # with so many of their tables; the others are on the page


def results(records: Records, main: Mapping[str, int] = MAIN) -> str:
    """The first tables of every experiment on record, and how to make what is not; an error of any is an error here."""
    known = [name for name in main if name in experiments.names()]
    there = [name for name in known if records.read(name)]
    parts = [_part(name, main[name], records) for name in there]
    if waiting := [name for name in known if name not in there]:
        parts.append(
            f"Not on record yet: {', '.join(waiting)}. `richbll bench {' '.join(waiting)}`, then `make readme`."
        )
    return "\n\n".join(parts)


def _part(name: str, count: int, records: Records) -> str:
    experiment, found = experiments.load(name), records.read(name)
    tables, took = experiment.tables(found), cost(found)
    seeds = f"{took.num_seeds} seed{'' if took.num_seeds == 1 else 's'}"
    origin = f"`richbll bench {name}`: {took.num_records:,} records of {seeds}, {took.duration} of computing."
    shown = [markdown(table) if count == 1 else f"{table.title}:\n\n{markdown(table)}" for table in tables[:count]]
    return "\n\n".join([f"### {experiment.title}", experiment.about, *shown, origin])
