"""The paper's first figure: a curve with a gap, where BLL is too sure and Rich-BLL comes near the exact NTK-GP.

Every seed has data and a network of its own; noise, network and prior are the same for all methods of a seed. Means of
the standard deviation are of its epistemic part. The NLL is that of a new observation, expected over its noise. The
distance to the NTK-GP is ‖s − s_GP‖ / ‖s_GP‖ over the standard deviations s at all inputs of the picture, or only at
those between the ends of the data.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from richbll import RegressionPredictive
from richbll_bench import methods
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.looks import COLORS, NAMES
from richbll_bench.metrics import gaussian_nll
from richbll_bench.nets import Pair, mlp, train
from richbll_bench.posthoc import Fit, bayesian_last_layer, network_alone, ntk_gp
from richbll_bench.records import Key, Record, new_record
from richbll_bench.tables import Column, Row, Table, ours
from richbll_bench.toys.curve import END, curve_data, curve_inputs, regions, true_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

NAME, DATASET = "toy-regression", "curve"
METHODS = ("map", "bll", "rich_bll", "rich_bll_s", "ntk_gp")


@dataclass(frozen=True)
class Settings:
    """All that the numbers depend on, with the seed."""

    num_points: int = 120
    noise_std: float = 0.2
    width: int = 50
    epochs: int = 1500
    prior_variance: float = 1.0
    ridge: float = 1e-4  # features of one input are nearly collinear: without it the projection is arbitrary in the gap
    subsample: float = 0.5


TINY = Settings(num_points=60, epochs=150)


@dataclass(frozen=True)
class Curves:
    """What one seed has: its data, and the predictions of every method at `x`."""

    data: Pair
    x: Tensor  # (n, 1)
    predictions: dict[str, RegressionPredictive]


def fits(settings: Settings, seed: int) -> dict[str, Fit]:
    """The options differ only in what makes the method."""
    prior, ridge = settings.prior_variance, settings.ridge
    return {
        "map": network_alone,
        "bll": bayesian_last_layer(prior, enrich=False),
        "rich_bll": bayesian_last_layer(prior, ridge=ridge),
        "rich_bll_s": bayesian_last_layer(prior, ridge=ridge, subsample=settings.subsample, seed=seed),
        "ntk_gp": ntk_gp(prior),
    }


def curves(settings: Settings, seed: int) -> Curves:
    """Train a network and ask every method."""
    data = curve_data(settings.num_points, settings.noise_std, seed)
    model = mlp(1, settings.width, seed)
    train(model, data, epochs=settings.epochs, batch_size=len(data[0]), learning_rate=1e-2, seed=seed)
    x = curve_inputs()
    return Curves(
        data, x, {name: fit(model, data, settings.noise_std**2)(x) for name, fit in fits(settings, seed).items()}
    )


def scores(found: Curves, method: str, noise_std: float) -> dict[str, float]:
    """The metrics of a method."""
    pred, truth = found.predictions[method], true_curve(found.x)
    std = pred.epistemic_variance.sqrt()  # (n, 1)
    metrics: dict[str, float] = {}
    for name, where in regions(found.x).items():
        variance = pred.variance.expand_as(pred.mean)[where]
        noise = (0.5 * noise_std**2 / variance).mean()  # what the noise of an observation adds to the NLL of the curve
        metrics[f"nll_{name}"] = float(gaussian_nll(pred.mean[where], variance, truth[where]) + noise)
        metrics[f"std_{name}"] = float(std[where].mean())
    metrics["covered"] = float(((pred.mean - truth).abs() <= 2 * std).double().mean())
    if method not in ("map", "ntk_gp"):
        exact = found.predictions["ntk_gp"].epistemic_variance.sqrt()
        between = ~regions(found.x)["outside"]  # inside the data and in the gap
        for name, where in (("", torch.ones_like(between)), ("_between", between)):
            pair = torch.stack([std.double()[where], exact[where]])  # (2, n)
            metrics[f"correlation{name}"] = float(torch.corrcoef(pair)[0, 1])
            metrics[f"distance{name}"] = float((pair[0] - pair[1]).norm() / pair[1].norm())
    return metrics


def run(job: Job) -> list[Record]:
    """All methods of every seed."""
    settings, records = Settings(**job.settings), []
    for seed in job.seeds:
        start = time.perf_counter()
        found = curves(settings, seed)
        seconds = time.perf_counter() - start
        for method in job.methods:
            metrics = scores(found, method, settings.noise_std)
            records.append(new_record(Key(NAME, DATASET, method, seed), job.settings, metrics, seconds))
    return records


def jobs(size: Size) -> list[Job]:
    """One for each seed."""
    settings = asdict(TINY if size.tiny else Settings())
    return [Job(NAME, DATASET, METHODS, (seed,), settings, run) for seed in range(size.num_seeds)]


COLUMNS = (
    Column("nll_inside", "NLL inside", DATASET, "nll_inside", "lower"),
    Column("nll_gap", "NLL in the gap", DATASET, "nll_gap", "lower"),
    Column("std_inside", "std inside", DATASET, "std_inside"),
    Column("std_gap", "std in the gap", DATASET, "std_gap"),
    Column("std_outside", "std outside", DATASET, "std_outside"),
    Column("covered", "curve within ±2 std", DATASET, "covered"),
    Column("correlation_between", "correlation with NTK-GP between", DATASET, "correlation_between", "higher"),
    Column("distance_between", "distance to NTK-GP between", DATASET, "distance_between", "lower"),
    Column("correlation", "correlation everywhere", DATASET, "correlation", "higher"),
    Column("distance", "distance everywhere", DATASET, "distance", "lower"),
)


def tables(records: Sequence[Record]) -> list[Table]:
    """One row for each method."""
    rows = tuple(Row(name, methods.load(name).title, 0, (None,) * len(COLUMNS)) for name in METHODS)
    return [ours(records, Table(NAME, "A curve with a gap", COLUMNS, rows))] if records else []


def figures(records: Sequence[Record]) -> list[Figure]:
    """The bands of the first seed, which is trained again for it."""
    if not records:
        return []
    first = min(records, key=lambda record: record.key.seed)
    caption = (
        "One network, five ways to be unsure of it. BLL knows little of the gap between the data. The NTK-GP counts "
        "every weight and is the reference. Rich-BLL comes near it at the price of BLL, also from half of the rows (S)."
    )
    draw = partial(drawn, Settings(**first.settings), first.key.seed)
    return [Figure(NAME, "Uncertainty about a curve", caption, draw)]


def drawn(settings: Settings, seed: int) -> "Drawing":
    """A panel for each method on the same axes, and the standard deviations in one."""
    from matplotlib.figure import Figure as Drawing

    found = curves(settings, seed)
    figure = Drawing(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True).flatten()
    for ax, (name, pred) in zip(axes, found.predictions.items(), strict=False):
        draw_bands(ax, found, pred, name)
    for name, pred in found.predictions.items():
        std, style = pred.epistemic_variance.sqrt().flatten().numpy(), ":" if name == "map" else "-"
        axes[-1].plot(found.x.flatten().numpy(), std, color=COLORS[name], lw=1.8, ls=style, label=NAMES[name])
    axes[-1].set_title("epistemic std", loc="left", fontweight="bold")
    axes[-1].legend(frameon=False, fontsize=9)
    axes[-1].set(ylim=(0, None))
    for ax in axes[3:]:
        ax.set_xlabel("x")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def draw_bands(ax: "Axes", found: Curves, pred: RegressionPredictive, name: str) -> None:
    """Training points, the true curve, and the prediction with its two bands."""
    x, truth, mean = (t.flatten().numpy() for t in (found.x, true_curve(found.x), pred.mean))
    narrow, wide = (
        2 * v.expand_as(pred.mean).sqrt().flatten().numpy() for v in (pred.epistemic_variance, pred.variance)
    )
    color = COLORS[name]
    ax.fill_between(x, mean - wide, mean + wide, color=color, alpha=0.15, lw=0, label="±2 std with noise")
    ax.fill_between(x, mean - narrow, mean + narrow, color=color, alpha=0.4, lw=0, label="epistemic")
    ax.plot(x, mean, color=color, lw=1.6, label="network")
    ax.plot(x, truth, color="black", lw=1.1, ls=":", label="true curve")
    ax.scatter(
        found.data[0].numpy(), found.data[1].numpy(), s=7, color="black", alpha=0.55, lw=0, label="training data"
    )
    ax.set(xlim=(-END, END), ylim=(-3.2, 3.2))
    ax.set_title(NAMES[name], loc="left", fontweight="bold")
    gap = float(pred.epistemic_variance.sqrt()[regions(found.x)["gap"]].mean())
    ax.set_title(f"std in the gap {gap:.2f}", loc="right", fontsize=9, color="0.4")


experiment = Experiment(
    name=NAME,
    title="Toy regression with a gap",
    about="The paper's first figure: one-dimensional regression with a gap, against the exact NTK-GP.",
    num_seeds=20,
    jobs=jobs,
    tables=tables,
    figures=figures,
)
