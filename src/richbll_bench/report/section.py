"""What the report says about one experiment. Whatever goes wrong is said in the section, and spoils no other."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from richbll_bench import experiments
from richbll_bench.experiment import Experiment
from richbll_bench.records import Record, Records
from richbll_bench.report.cost import Cost, cost
from richbll_bench.report.pictures import Picture, picture
from richbll_bench.tables import structure


@dataclass
class Section:
    """An experiment on the page; without records, only what it is and how to run it."""

    name: str
    title: str
    about: str = ""
    command: str = ""
    cost: Cost | None = None
    tables: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing on record, and nothing wrong."""
        return self.cost is None and not self.problems


def sections(records: Records, *, tiny: bool = False) -> list[Section]:
    """One for every experiment, and one for every file of records that belongs to none."""
    known = experiments.names()
    strangers = [name for name in records.experiments() if name not in known]
    return [*(section(name, records, tiny=tiny) for name in known), *map(_stranger, strangers)]


def section(name: str, records: Records, *, tiny: bool = False) -> Section:
    """The section of one experiment."""
    made = Section(name, name, command=f"richbll bench {name}" + (" --tiny" if tiny else ""))
    experiment: Experiment | None = None
    with _told(made, "The experiment cannot be loaded"):
        experiment = experiments.load(name)
        made.title, made.about = experiment.title, experiment.about
    found: Sequence[Record] = ()
    with _told(made, "The records cannot be read"):
        found = records.read(name)
    if not found:
        return made
    with _told(made, "The cost cannot be told"):
        made.cost = cost(found)
    if experiment is not None:
        _fill(made, experiment, found, num_seeds=2 if tiny else experiment.num_seeds)
    return made


def _fill(made: Section, experiment: Experiment, records: Sequence[Record], *, num_seeds: int) -> None:
    if made.cost is not None and made.cost.num_seeds != num_seeds:
        made.command += f" --seeds {made.cost.num_seeds}"
    with _told(made, "The tables cannot be made"):
        made.tables = [structure(table) for table in experiment.tables(records)]
    with _told(made, "The figures cannot be made"):
        for figure in experiment.figures(records):
            with _told(made, f"The figure {figure.name} cannot be drawn"):
                made.pictures.append(picture(figure))


def _stranger(name: str) -> Section:
    return Section(name, name, problems=[f"There are records in {name}.jsonl, but there is no experiment {name}."])


@contextmanager
def _told(section: Section, what: str) -> Iterator[None]:
    """An error becomes a line of the section."""
    try:
        yield
    except Exception as error:
        section.problems.append(f"{what} ({type(error).__name__}): {error}")
