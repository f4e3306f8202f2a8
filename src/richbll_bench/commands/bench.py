"""`richbll bench NAME …`: runs experiments, and prints their tables."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from richbll_bench import experiments
from richbll_bench.engine import ENGINES, run
from richbll_bench.errors import EngineError, UnknownExperimentError
from richbll_bench.experiment import Size
from richbll_bench.records import Records
from richbll_bench.tables import rich_table

RECORDS = Path("records")
_WIDE = 160  # columns, where there is no terminal to ask


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments; without any, they are listed.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; the paper's number when left out.", min=1)] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    width: Annotated[int | None, typer.Option(help="Base width of the CNN; the paper's is 128.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="How long networks are trained.", min=1)] = None,
    images: Annotated[int | None, typer.Option(help="Only so many of the training images.", min=1)] = None,
    model: Annotated[str | None, typer.Option(help="Which network, where there are several.")] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Seconds instead of hours, to see that it runs.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes side by side.", min=1)] = 1,
    engine: Annotated[str, typer.Option(help="Where jobs run: local, or ray for a running Ray cluster.")] = "local",
    records: Annotated[Path, typer.Option(help="Folder of the records, one file for each experiment.")] = RECORDS,
) -> None:
    """Run experiments of the paper and beyond. What is on record already is not run again."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    if not names:
        for found in map(experiments.load, experiments.names()):
            console.print(f"[bold]{found.name:20}[/] {found.title} ({found.num_seeds} seeds)")
        return
    if engine not in ENGINES:
        raise EngineError(f"There is no engine {engine!r}; there are {', '.join(ENGINES)}.")
    if unknown := [name for name in names if name not in experiments.names()]:
        raise UnknownExperimentError(
            f"There is no experiment {unknown[0]!r}; there are {', '.join(experiments.names())}."
        )
    kept = Records(records / "tiny" if tiny else records)
    given: dict[str, Any] = {"width": width, "epochs": epochs, "images": images, "model": model}
    asked = [option for option, value in given.items() if value is not None]
    for experiment in map(experiments.load, names):
        if unused := [option for option in asked if option not in experiment.takes]:
            raise EngineError(f"{experiment.name} takes no --{unused[0]}.")
    for name in names:
        experiment = experiments.load(name)
        num_seeds = seeds or (2 if tiny else experiment.num_seeds)
        size = Size(num_seeds, tiny, tuple(dataset or ()), tuple(method or ()), **given)
        say = console.log if console.is_terminal else print
        run(experiment, size, kept, num_jobs=jobs, engine=engine, say=say)
        for table in experiment.tables(kept.read(name)):
            console.print(rich_table(table))
