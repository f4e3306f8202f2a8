"""The paper's table of complexities, measured: how fit and predict grow with N, r and m, one varied at a time.

Networks are MLPs with random weights. Their last hidden layer has r − 1 units and the one before as many as make up m.
Times are processor times on one thread as ratios within a run: to a forward and backward pass with weight gradients
over the same rows (a yard), and, for growth, to a yard of one base shape. Of predictions, to forward passes. Memory is
that of tensors, at its highest during the fit and what is left for predictions, beyond the network.

The paper counts what comes after the features. Ours is the whole call, with the passes over the network that make the
features: they cost N (m + r), so times grow with m too, and with N where only k rows are used but all are read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from richbll import RichBLL
from richbll_bench import methods
from richbll_bench.costs import cpu_seconds, exponent, tensor_bytes, timed
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.looks import COLORS, NAMES
from richbll_bench.ntk_gp import fit_ntk_gp
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Key, Record, new_record
from richbll_bench.tables import Cell, Column, Row, Table, beside, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAME = "complexity"
METHODS = ("map", "bll", "rich_bll", "rich_bll_s", "ntk_gp")
AXES = {"N": "training rows N", "r": "last-layer features r", "m": "other parameters m"}
_INPUTS, _BATCH, _NOISE, _RIDGE = 16, 256, 0.1, 1e-3


@dataclass(frozen=True)
class Shape:
    """N rows, r features of the last layer, `before` units in the layer before it, k rows of a subsample."""

    N: int
    r: int
    before: int
    k: int
    num_test: int = 512

    @property
    def m(self) -> int:
        """Parameters before the last layer."""
        return (_INPUTS + 1) * self.before + (self.before + 1) * (self.r - 1)

    def with_m(self, m: int) -> "Shape":
        """The shape whose m comes nearest."""
        return replace(self, before=max(1, round((m - self.r + 1) / (_INPUTS + self.r))))


BASE, TINY = Shape(N=1024, r=65, before=64, k=512), Shape(N=96, r=17, before=16, k=48, num_test=32)


def shapes(tiny: bool) -> dict[str, list[Shape]]:
    """Along each axis."""
    if tiny:
        wider = [replace(TINY, r=r).with_m(2000) for r in (9, 17, 33)]
        rows, before = [replace(TINY, N=N) for N in (96, 192, 384)], [replace(TINY, before=b) for b in (8, 16, 32)]
    else:
        wider = [replace(BASE, N=2048, r=r, k=1025).with_m(24_000) for r in (65, 129, 257, 513, 1025)]
        rows = [replace(BASE, N=N) for N in (1024, 2048, 4096, 8192, 16384, 32768)]
        before = [replace(BASE, before=b) for b in (32, 64, 128, 256, 512, 1024, 2048)]
    return {"N": rows, "r": wider, "m": before}


def fits_in_memory(shape: Shape) -> bool:
    """Whether the NTK-GP is run: it holds N × p numbers twice, and multiplies N × N × p."""
    return shape.N <= 4096 and shape.N * shape.m < 24_000_000


def network(shape: Shape, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """With rows to fit and rows to predict."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = nn.Linear(_INPUTS, shape.before), nn.ReLU(), nn.Linear(shape.before, shape.r - 1), nn.ReLU()
        model = nn.Sequential(*hidden, nn.Linear(shape.r - 1, 1)).eval()
        return model, torch.randn(shape.N, _INPUTS), torch.randn(shape.num_test, _INPUTS)


def yard(model: nn.Module, x: Tensor) -> float:
    """Seconds of a forward and backward pass with weight gradients."""
    parameters = list(model.parameters())

    def work() -> None:
        for rows in torch.split(x, _BATCH):
            torch.autograd.grad(model(rows).sum(), parameters)

    return cpu_seconds(work)


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """A plain forward pass."""
    with torch.no_grad():
        output: Tensor = model(x)
    return output


def fitting(method: str, shape: Shape, model: nn.Module, x: Tensor, seed: int) -> Callable[[], Any]:
    """What is to be timed: it returns something with `predict`."""
    if method == "ntk_gp":
        return lambda: fit_ntk_gp(model, x, noise_variance=_NOISE)
    options: dict[str, dict[str, Any]] = {
        "bll": {"enrich": False},
        "rich_bll": {"ridge": _RIDGE},
        "rich_bll_s": {"ridge": _RIDGE, "subsample": shape.k, "seed": seed},
    }
    batches = [(rows, torch.zeros(len(rows))) for rows in torch.split(x, _BATCH)]
    return lambda: RichBLL(model, noise_variance=_NOISE, progress=False, **options[method]).fit(batches)


def measured(method: str, shape: Shape, base: Shape, seed: int) -> dict[str, float]:
    """All costs of a method at a shape."""
    model, x, test = network(shape, seed)
    base_model, base_x, _ = network(base, seed)
    sizes = {"N": shape.N, "r": shape.r, "m": shape.m}
    pass_seconds = cpu_seconds(lambda: forward(model, test))
    base_pass_seconds = cpu_seconds(lambda: forward(base_model, test))
    if method == "map":
        return sizes | {"predict_passes": 1.0, "predict_units": pass_seconds / base_pass_seconds}
    fit = fitting(method, shape, model, x, seed)
    peak, kept = tensor_bytes(fit)  # this also warms up
    before = yard(model, x), yard(base_model, base_x)
    fitted, fit_seconds = timed(fit)
    after = yard(model, x), yard(base_model, base_x)
    fitted.predict(test)
    predict_seconds = cpu_seconds(lambda: fitted.predict(test))
    return sizes | {
        "fit_yards": 2 * fit_seconds / (before[0] + after[0]),
        "fit_units": 2 * fit_seconds / (before[1] + after[1]),
        "predict_passes": predict_seconds / pass_seconds,
        "predict_units": predict_seconds / base_pass_seconds,
        "peak_mb": peak / 1e6,
        "kept_mb": kept / 1e6,
    }


def run(job: Job) -> list[Record]:
    """All methods at one shape; a seed is a repeat with other weights and rows."""
    shape, base = Shape(**job.settings["shape"]), Shape(**job.settings["base"])
    records = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed in job.seeds:
            for method in job.methods:
                start = time.perf_counter()
                metrics = measured(method, shape, base, seed)
                key = Key(NAME, job.dataset, method, seed)
                records.append(new_record(key, job.settings, metrics, time.perf_counter() - start))
    finally:
        torch.set_num_threads(threads)
    return records


def jobs(size: Size) -> list[Job]:
    """One for each shape."""
    base, seeds = asdict(TINY if size.tiny else BASE), tuple(range(size.num_seeds))
    made = []
    for axis, along in shapes(size.tiny).items():
        for shape in along:
            names = METHODS if fits_in_memory(shape) else METHODS[:-1]
            settings = {"axis": axis, "shape": asdict(shape), "base": base}
            made.append(
                Job(NAME, f"{axis}={getattr(shape, axis)}", names, seeds, settings, run, cost=shape.N * shape.m)
            )
    return made


# ---------------------------------------------------------------------- telling

# What the paper's expressions say of each axis while the others stay, from the one leading term to the other.
_PAPER_TIME = {"ntk_gp": ("2–3", "0", "0–1"), "bll": ("0–1", "2–3", "0"), "rich_bll": ("0–1", "2–3", "0")}
_PAPER_TIME |= {"rich_bll_s": ("0", "2–3", "0")}
_PAPER_MEMORY = {"ntk_gp": ("2", "0", "0"), "bll": ("0", "2", "0"), "rich_bll": ("0", "2", "0")}
_PAPER_MEMORY |= {"rich_bll_s": ("0", "2", "0")}


def growth(records: Sequence[Record], axis: str, method: str, metric: str) -> Cell | None:
    """The exponent along an axis, of its three largest sizes: the mean over seeds."""
    points: dict[int, list[tuple[float, float]]] = {}
    for record in records:
        if record.settings["axis"] == axis and record.key.method == method and metric in record.metrics:
            points.setdefault(record.key.seed, []).append((record.metrics[axis], record.metrics[metric]))
    slopes = [exponent(*zip(*sorted(found)[-3:], strict=True)) for found in points.values() if len(found) > 2]
    return summary(slopes) if slopes else None


def _growth_table(records: Sequence[Record], metric: str, title: str) -> Table:
    columns = tuple(Column(axis, f"{axis}^", decimals=2) for axis in AXES)
    rows = (
        Row(name, methods.load(name).title, 0, tuple(growth(records, axis, name, metric) for axis in AXES))
        for name in METHODS
    )
    present = tuple(row for row in rows if any(row.cells))
    return Table(f"{NAME}-{metric}", f"{title}: exponents of growth, at the three largest sizes", columns, present)


def _paper(like: Table, exponents: dict[str, tuple[str, str, str]], column: str) -> Table:
    printed = paper_table("complexity")
    rows = tuple(replace(row, cells=tuple(Cell(text=text) for text in exponents[row.name])) for row in like.rows)
    told = "; ".join(f"{NAMES[name]} {cell.text}" for name in exponents if (cell := printed.cell(name, column)))
    return replace(like, rows=rows, notes=(f"{told}, with p = m + r.",))


def _costs(records: Sequence[Record]) -> Table:
    """At the largest shape of the axis of rows that has all methods."""
    along = [record for record in records if record.settings["axis"] == "N"]
    largest = max(record.metrics["N"] for record in along if record.key.method == "ntk_gp")
    here = [record for record in along if record.metrics["N"] == largest]
    columns = (
        Column("fit_yards", "fit ÷ yard", decimals=1),
        Column("predict_passes", "predict ÷ forward pass", decimals=1),
        Column("peak_mb", "highest in the fit, MB", decimals=2),
        Column("kept_mb", "kept, MB", decimals=2),
    )

    def cell(method: str, metric: str) -> Cell | None:
        values = [r.metrics[metric] for r in here if r.key.method == method and metric in r.metrics]
        return summary(values) if values else None

    sizes = here[0].metrics
    title = f"Costs at N = {sizes['N']:,.0f}, r = {sizes['r']:.0f}, m = {sizes['m']:,.0f}"
    rows = (Row(n, methods.load(n).title, 0, tuple(cell(n, column.name) for column in columns)) for n in METHODS)
    return Table(f"{NAME}-costs", title, columns, tuple(row for row in rows if any(row.cells)))


def tables(records: Sequence[Record]) -> list[Table]:
    """Exponents beside the paper's, and costs at one size."""
    if not any((r.settings["axis"], r.key.method) == ("N", "ntk_gp") for r in records):
        return []
    fit = _growth_table(records, "fit_units", "Time of the fit")
    kept = _growth_table(records, "kept_mb", "Memory for predictions")
    return [
        beside(fit, _paper(fit, _PAPER_TIME, "time")),
        beside(kept, _paper(kept, _PAPER_MEMORY, "memory")),
        _growth_table(records, "predict_units", "Time of predictions"),
        _costs(records),
    ]


def figures(records: Sequence[Record]) -> list[Figure]:
    """Times and memory along the three axes."""
    caption = (
        "One size is varied at a time. Times are in forward and backward passes (fit) or forward passes (predict) of "
        "the base shape, which is the first along N. Memory is what is kept for predictions, beyond the "
        "network: the same for BLL and both Rich-BLL, so their lines coincide."
    )
    return [Figure(NAME, "Cost against size", caption, lambda: drawn(records))] if records else []


def drawn(records: Sequence[Record]) -> "Drawing":
    """A column for each axis; a row each for fit, predict and memory."""
    from matplotlib.figure import Figure as Drawing

    figure = Drawing(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(3, 3, sharex="col", sharey="row")
    labels = {"fit_units": "fit, in yards", "predict_units": "predict, in passes", "kept_mb": "kept, MB"}
    for line, (metric, label) in zip(axes, labels.items(), strict=True):
        line[0].set_ylabel(label)
        for ax, axis in zip(line, AXES, strict=True):
            for method in METHODS:
                points = _means(records, axis, method, metric)
                if points:
                    ax.plot(*zip(*points, strict=True), "o-", ms=3.5, lw=1.7, color=COLORS[method], label=NAMES[method])
            ax.set(xscale="log", yscale="log")
    for ax, title in zip(axes[-1], AXES.values(), strict=True):
        ax.set_xlabel(title)
    handles, names = axes[1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    return figure


def _means(records: Sequence[Record], axis: str, method: str, metric: str) -> list[tuple[float, float]]:
    found: dict[float, list[float]] = {}
    for record in records:
        if record.settings["axis"] == axis and record.key.method == method and metric in record.metrics:
            found.setdefault(record.metrics[axis], []).append(record.metrics[metric])
    return sorted((size, sum(values) / len(values)) for size, values in found.items())


experiment = Experiment(
    name=NAME,
    title="Time and memory against N, r and m",
    about="The paper's table of complexities, measured as ratios within a run, on one thread.",
    num_seeds=3,
    jobs=jobs,
    tables=tables,
    figures=figures,
)
