"""The appendix's spectra: how few directions the NTK of a UCI network has, and whether the last layer has them.

The networks are those of the UCI table, the points their training and validation rows. With `--model cnn` it is the CNN
that `cifar` trains, the gradient that of the predicted class's logit, the points 1,000 training images. A record is
about one of three kernels: the NTK ΦᵖΦᵖᵀ, its part of the other layers ΦᵐΦᵐᵀ, and its part of the last layer ΦʳΦʳᵀ.
Eigenvalues are kept as shares of the trace, at the ranks of `RANKS` alone, for the picture.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from richbll_bench.errors import EngineError
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.experiments.cifar import EPOCHS, WIDTH
from richbll_bench.images.backbones import Setting
from richbll_bench.images.gradients import class_features
from richbll_bench.images.running import settings
from richbll_bench.images.task import Batches, Task
from richbll_bench.records import Key, Record, new_record
from richbll_bench.regression.backbones import Trained, setting, trained_backbones
from richbll_bench.spectra import Features, best_residual, effective_rank, eigenvalues, features, num_for, residual
from richbll_bench.tables import Cell, Column, Row, Table, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAME = "spectrum"
CNN = "cnn_"  # and the width: the name of the data set in records
DATASETS = {"boston": "Boston", "concrete": "Concrete", "energy": "Energy", "wine_red": "Wine"}
KERNELS = {"ntk": "NTK", "other_layers": "other layers", "last_layer": "last layer"}
RANKS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 51, 64, 90, 128, 181, 256, 362, 512, 724, 1024, 1448)
_COLORS = {"ntk": "#b5442e", "other_layers": "#6b6b6b", "last_layer": "#c9820f"}
_LINES = {"ntk": "o-", "other_layers": "--", "last_layer": "o-"}  # the first two nearly coincide


def summed_up(values: Tensor) -> dict[str, float]:
    """The spectrum in a few numbers, and at some ranks."""
    shares = values / values.sum()
    cumulative = shares.cumsum(0)
    metrics = {
        "trace": float(values.sum()),
        "share_10": float(shares[:10].sum()),
        "share_50": float(shares[:50].sum()),
        "num_90": num_for(values, 0.9),
        "num_99": num_for(values, 0.99),
        "effective_rank": effective_rank(values),
    }
    for rank in RANKS:
        if rank <= len(values):
            metrics |= {
                f"eigenvalue_{rank}": float(shares[rank - 1]),
                f"cumulative_{rank}": float(cumulative[rank - 1]),
            }
    return metrics


def metrics_of(found: Features) -> dict[str, dict[str, float]]:
    """Of every kernel of one network."""
    metrics = {name: summed_up(eigenvalues(kernel)) for name, kernel in found.kernels.items()}
    sizes = {"num_rows": len(found.other), "num_last": found.phi_r.shape[1], "num_other": found.num_other}
    metrics["other_layers"] |= {"residual": residual(found), "best_residual": best_residual(found)}
    return {name: sizes | one for name, one in metrics.items()}


def run(job: Job) -> list[Record]:
    """The networks of all seeds are trained together."""
    records: list[Record] = []
    for backbone in trained_backbones(setting(job.dataset, bool(job.settings["tiny"])), job.seeds):
        records += _records(job, backbone.seed, partial(_of_table, backbone))
    return records


def run_cnn(job: Job) -> list[Record]:
    """The network that `cifar` trains, at images of its training set."""
    wanted = {name: value for name, value in job.settings.items() if name not in ("tiny", "model", "num_points")}
    records: list[Record] = []
    for seed in job.seeds:
        task = Task(Setting("cifar10", **wanted), seed)
        points = task.images("train").rows(slice(job.settings["num_points"]))
        x = torch.cat([x for x, _ in Batches(points, task.data.scaling)])
        records += _records(job, seed, partial(class_features, task.backbone.model, x))
    return records


def _of_table(backbone: Trained) -> Features:
    assert isinstance(backbone.model, nn.Sequential)
    return features(backbone.model, backbone.split.everything_but_test[0])


def _records(job: Job, seed: int, found: Callable[[], Features]) -> list[Record]:
    start = time.perf_counter()
    metrics = metrics_of(found())
    seconds = time.perf_counter() - start
    return [
        new_record(Key(NAME, job.dataset, name, seed), job.settings, metrics[name], seconds) for name in job.methods
    ]


def jobs(size: Size) -> list[Job]:
    """One for each data set; with `--model cnn`, one for each seed of the CNN."""
    if size.model not in (None, "mlp", "cnn"):
        raise EngineError(f"There is no model {size.model!r} to take the spectrum of; there are mlp and cnn.")
    if size.model == "cnn":
        return _cnn_jobs(size)
    chosen = list(DATASETS)[: 2 if size.tiny else None]
    seeds, settings = tuple(range(size.num_seeds)), {"tiny": size.tiny}
    return [Job(NAME, dataset, tuple(KERNELS), seeds, settings, run) for dataset in chosen]


def _cnn_jobs(size: Size) -> list[Job]:
    found = settings("cifar10", size, width=WIDTH, epochs=EPOCHS)
    found = {name: value for name, value in found.items() if name != "per_class"}
    found |= {"tiny": size.tiny, "model": "cnn", "num_points": 40 if size.tiny else 1000}
    name = f"{CNN}{found['width']}"
    return [Job(NAME, name, tuple(KERNELS), (seed,), found, run_cnn) for seed in range(size.num_seeds)]


def titles(records: Sequence[Record]) -> dict[str, str]:
    """Of all networks on record, by data set or width."""
    there = dict.fromkeys(record.key.dataset for record in records)
    widths = sorted(int(name.removeprefix(CNN)) for name in there if name.startswith(CNN))
    return DATASETS | {f"{CNN}{width}": f"CNN of width {width}" for width in widths}


def values_of(records: Sequence[Record], dataset: str, kernel: str, metric: str) -> list[float]:
    """One number for each seed that has it."""
    found = (r for r in records if (r.key.dataset, r.key.method) == (dataset, kernel))
    return [record.metrics[metric] for record in found if metric in record.metrics]


def tables(records: Sequence[Record]) -> list[Table]:
    """One row for each data set and kernel."""
    columns = (
        Column("residual", "residual ε", metric="residual"),
        Column("best_residual", "best of r directions", metric="best_residual"),
        Column("share_10", "trace in the first 10", metric="share_10"),
        Column("share_50", "in the first 50", metric="share_50"),
        Column("num_90", "eigenvalues for 90 %", metric="num_90", decimals=1),
        Column("num_99", "for 99 %", metric="num_99", decimals=1),
        Column("effective_rank", "effective rank", metric="effective_rank", decimals=1),
    )

    def cell(dataset: str, kernel: str, metric: str) -> Cell | None:
        values = values_of(records, dataset, kernel, metric)
        return summary(values) if values else None

    rows = [
        Row(
            f"{dataset}/{kernel}",
            f"{title}, {kernel_title}",
            block,
            tuple(cell(dataset, kernel, column.metric) for column in columns),
        )
        for block, (dataset, title) in enumerate(titles(records).items())
        for kernel, kernel_title in KERNELS.items()
        if values_of(records, dataset, kernel, "trace")
    ]
    notes = (
        "Residual: ‖(I − P)Φᵐ‖ / ‖Φᵐ‖, Frobenius; P projects onto the last layer's features. Beside it, onto the r "
        "directions of the other layers' largest eigenvalues, the least that is possible.",
    )
    return [Table(NAME, "Spectra at the training rows", columns, tuple(rows), notes)] if rows else []


def figures(records: Sequence[Record]) -> list[Figure]:
    """Drawn from the ranks on record."""
    caption = (
        "Above: eigenvalues as shares of the trace. Below: how much of the trace the first ones hold. Means over "
        "seeds. The dotted line is r, the number of the last layer's features. Few directions hold most of the NTK, "
        "but they are not all within the last layer's span: the residual ε says how much is not."
    )
    there = [name for name in titles(records) if all(values_of(records, name, kernel, "trace") for kernel in KERNELS)]
    some = [record for record in records if record.key.dataset in there]
    return [Figure(NAME, "Spectrum of the empirical NTK", caption, lambda: drawn(some))] if some else []


def drawn(records: Sequence[Record]) -> "Drawing":
    """A column for each data set."""
    from matplotlib.figure import Figure as Drawing

    named = titles(records)
    there = [name for name in named if values_of(records, name, "ntk", "trace")]
    figure = Drawing(figsize=(3 * len(there) + 0.6, 5.4), layout="constrained")
    axes = figure.subplots(2, len(there), sharex="col", sharey="row", squeeze=False)
    for column, dataset in zip(axes.T, there, strict=True):
        for kernel, title in KERNELS.items():
            for ax, metric in zip(column, ("eigenvalue", "cumulative"), strict=True):
                means = {rank: values_of(records, dataset, kernel, f"{metric}_{rank}") for rank in RANKS}
                points = [(rank, sum(values) / len(values)) for rank, values in means.items() if values]
                ax.plot(*zip(*points, strict=True), _LINES[kernel], ms=2.5, lw=1.6, color=_COLORS[kernel], label=title)
        eps = summary(values_of(records, dataset, "other_layers", "residual"))
        column[0].set_title(named[dataset], loc="left", fontweight="bold")
        column[0].set_title(f"ε = {eps.mean:.2f}", loc="right", fontsize=10, color="0.35")
        column[0].set(xscale="log", yscale="log", ylim=(1e-9, 2))
        column[1].set(xlabel="rank", ylim=(0, 1.03))
        for ax in column:
            ax.axvline(values_of(records, dataset, "ntk", "num_last")[0], color="0.5", ls=":", lw=1)
    axes[0, 0].set_ylabel("eigenvalue ÷ trace")
    axes[1, 0].set_ylabel("share of the trace")
    axes[1, -1].legend(frameon=False, fontsize=9, loc="lower right")
    return figure


experiment = Experiment(
    name=NAME,
    title="Spectrum of the empirical NTK",
    about="The appendix's spectra of UCI networks and the CNN, and what of gradients the last layer cannot express.",
    num_seeds=10,
    jobs=jobs,
    tables=tables,
    figures=figures,
    takes=("model", "width", "epochs", "images"),
)
