"""What an experiment is: jobs that leave records, and the tables and figures that records are shown in.

An experiment is a file in `experiments/` that holds `experiment = Experiment(…)`; its name is the file's, with dashes.
Its jobs know nothing of where they run: `engine` passes over those whose records are there, runs the others side by
side, and appends what they return.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from richbll.errors import RichBLLError
from richbll_bench.records import Key, Record
from richbll_bench.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Size:
    """How much of an experiment is run."""

    num_seeds: int
    tiny: bool = False  # some seconds, to see that everything runs: fewer rows, epochs and samples
    datasets: tuple[str, ...] = ()  # only these; an experiment may take others than its own
    methods: tuple[str, ...] = ()  # only these
    width: int | None = None  # of the network; None here and below: the experiment's own
    epochs: int | None = None
    images: int | None = None  # of the training and validation images
    model: str | None = None  # which network


@dataclass(frozen=True)
class Job:
    """Some records that are made together: methods on one data set, for several seeds at once.

    `run` is a function of a module, so that other processes can be given it; it is called with the seeds that are
    missing and returns the metrics of every method and seed, or raises an `UnfinishedError` with those that it has.
    """

    experiment: str
    dataset: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    run: Callable[["Job"], Sequence[Record]]
    cost: float = 1.0  # relative to others: the longest begin first

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"{self.dataset}: {', '.join(self.methods)}"

    def keys(self, seed: int) -> list[Key]:
        """The records of a seed."""
        return [Key(self.experiment, self.dataset, method, seed) for method in self.methods]


class UnfinishedError(RichBLLError):
    """Some methods of a job failed; what the others gave is `made`."""

    def __init__(self, message: str, made: Sequence[Record], trace: str) -> None:
        super().__init__(message)
        self.made, self.trace = made, trace


@dataclass(frozen=True)
class Figure:
    """A picture and what is to be seen in it."""

    name: str
    title: str
    caption: str
    draw: Callable[[], "Drawing"]


@dataclass(frozen=True)
class Experiment:
    """By one command: `richbll bench NAME`."""

    name: str
    title: str
    about: str  # a sentence or two for the report
    num_seeds: int
    jobs: Callable[[Size], list[Job]]
    tables: Callable[[Sequence[Record]], list[Table]] = field(default=lambda _: [])
    figures: Callable[[Sequence[Record]], list[Figure]] = field(default=lambda _: [])
    takes: tuple[str, ...] = ()  # which of width, epochs, images and model it can be given
