"""Pictures of what methods say about two classes, on a line and in the plane."""

from collections.abc import Callable, Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from richbll import ClassPredictive
from richbll_bench.looks import COLORS, NAMES
from richbll_bench.nets import Pair
from richbll_bench.toys.classes import PROBLEMS

Predicts = Mapping[str, Callable[[Tensor], ClassPredictive]]
_CLASS_COLORS = ("white", "#e07b39")


def draw_line(data: Pair, predicts: Predicts) -> Figure:
    """Probability and its band, one panel for each method."""
    (end,) = PROBLEMS["line"].box
    x = torch.linspace(-end, end, 401).unsqueeze(-1)
    figure = Figure(figsize=(13, 3.2), layout="constrained")
    axes = figure.subplots(1, len(predicts), sharex=True, sharey=True)
    for ax, (name, predict) in zip(axes, predicts.items(), strict=True):
        pred = predict(x)
        f, std = pred.logits.detach(), 2 * pred.logit_variance.detach().sqrt()
        lower, middle, upper, mean = (
            t.flatten().numpy() for t in ((f - std).sigmoid(), f.sigmoid(), (f + std).sigmoid(), pred.probs.detach())
        )
        at = x.flatten().numpy()
        for side in (-1, 1):
            ax.axvspan(*sorted((0.8 * side, 2.0 * side)), color="0.93", lw=0)
        ax.fill_between(at, lower, upper, color=COLORS[name], alpha=0.3, lw=0, label="±2 std of the logit")
        ax.plot(at, middle, color=COLORS[name], lw=1.6, label="network")
        ax.plot(at, mean, color="black", lw=1.0, ls="--", label="probability with doubt")
        ax.scatter(data[0].numpy(), data[1].numpy(), s=9, color="black", alpha=0.5, lw=0, label="training data")
        ax.set_title(NAMES[name], loc="left", fontweight="bold")
        ax.set(xlim=(-end, end), ylim=(-0.06, 1.06), xlabel="x")
    axes[0].set_ylabel("probability")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def draw_moons(data: Pair, predicts: Predicts) -> Figure:
    """Confidence above and the logit's standard deviation below, on one scale for all methods."""
    across, along = (torch.linspace(-end, end, 81) for end in PROBLEMS["moons"].box)
    x = torch.cartesian_prod(across, along)
    shape = len(across), len(along)
    found = {name: predict(x) for name, predict in predicts.items()}
    highest = max(float(pred.logit_variance.detach().sqrt().quantile(0.99)) for pred in found.values())
    figure = Figure(figsize=(13, 5.4), layout="constrained")
    axes = figure.subplots(2, len(found), sharex=True, sharey=True)
    ends = tuple(float(end) for line in (across, along) for end in (line[0], line[-1]))
    for column, (name, pred) in zip(axes.T, found.items(), strict=True):
        p = pred.probs.detach().flatten()
        confidence, std = torch.maximum(p, 1 - p), pred.logit_variance.detach().sqrt().flatten()
        column[0].set_title(NAMES[name], loc="left", fontweight="bold")
        for ax, values, colors, edge, low, high in (
            (column[0], confidence, "Blues", "black", 0.5, 1.0),
            (column[1], std, "magma", "white", 0.0, highest),
        ):
            picture = values.reshape(shape).T.numpy()
            ax.imshow(picture, origin="lower", aspect="auto", cmap=colors, vmin=low, vmax=high, extent=ends)
            ax.contour(across.numpy(), along.numpy(), p.reshape(shape).T.numpy(), [0.5], colors=edge, linewidths=0.8)
            _points(ax, data)
    for row, extend in zip(axes, ("neither", "max"), strict=True):
        figure.colorbar(row[-1].images[0], ax=row.tolist(), pad=0.01, extend=extend)
    axes[0, 0].set_ylabel("confidence")
    axes[1, 0].set_ylabel("std of the logit")
    return figure


def _points(ax: Axes, data: Pair) -> None:
    x, y = data
    for label, color in enumerate(_CLASS_COLORS):
        rows = y.flatten() == label
        ax.scatter(x[rows, 0].numpy(), x[rows, 1].numpy(), s=8, color=color, edgecolors="black", linewidths=0.4)
