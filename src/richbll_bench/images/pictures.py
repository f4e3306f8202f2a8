"""Reliability diagrams and histograms of scores, from the bins on record."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from richbll_bench.experiment import Figure
from richbll_bench.images.evaluation import NUM_BINS, NUM_PARTS
from richbll_bench.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_COLUMNS = 4
_COLORS = ("#6b6b6b", "#b5442e", "#2a6fbb")


def reliability_figure(name: str, words: str, records: Sequence[Record], titles: Mapping[str, str]) -> Figure:
    """A panel for each method."""
    caption = (
        f"{words}. Share of correct predictions against the probability that they were given, in {NUM_BINS} bins, "
        "means over seeds; a dot's area is its bin's share of the test images. Below the line: too sure."
    )
    return Figure(name, "Reliability", caption, lambda: draw_reliability(records, titles))


def score_figure(
    name: str, words: str, records: Sequence[Record], titles: Mapping[str, str], outside: Mapping[str, str]
) -> Figure:
    """A panel for each method."""
    caption = (
        f"{words}. Shares of test images and of other images by each method's own score, cut into {NUM_PARTS} parts "
        "that hold equally many validation images. Flat: as strange as validation images; high on the right: stranger."
    )
    return Figure(name, "Scores of images of other kinds", caption, lambda: draw_scores(records, titles, outside))


def draw_reliability(records: Sequence[Record], titles: Mapping[str, str]) -> "Drawing":
    """Confidence to the right, share correct upwards."""
    figure, panels = _panels(titles, "confidence", "share correct")
    for method, ax in panels.items():
        of_method = [record for record in records if record.key.method == method]
        points = []
        for number in range(NUM_BINS):
            there = [record.metrics for record in of_method if f"bin_share_{number}" in record.metrics]
            if there:
                points.append([sum(m[f"bin_{what}_{number}"] for m in there) / len(there) for what in _PARTS_OF_A_BIN])
        ax.plot([0, 1], [0, 1], color="0.6", lw=1, ls=":")
        if points:
            confidence, correct, share = zip(*points, strict=True)
            ax.plot(confidence, correct, color=_COLORS[2], lw=1)
            ax.scatter(confidence, correct, s=[6 + 150 * one for one in share], color=_COLORS[2], alpha=0.7)
        ece = [record.metrics["ece"] for record in of_method]
        ax.text(
            0.96, 0.06, f"ECE {sum(ece) / len(ece):.3f}", transform=ax.transAxes, ha="right", fontsize=8, color="0.35"
        )
    return figure


_PARTS_OF_A_BIN = ("confidence", "correct", "share")


def draw_scores(records: Sequence[Record], titles: Mapping[str, str], outside: Mapping[str, str]) -> "Drawing":
    """The score's range to the right, shares upwards."""
    figure, panels = _panels(titles, "score, by twentieths of validation images", "share")
    places = [(number + 0.5) / NUM_PARTS for number in range(NUM_PARTS)]
    for method, ax in panels.items():
        of_method = [record.metrics for record in records if record.key.method == method]
        for (name, title), color in zip({"test": "test", **outside}.items(), _COLORS, strict=False):
            shares = [sum(m[f"part_{name}_{n}"] for m in of_method) / len(of_method) for n in range(NUM_PARTS)]
            ax.step(places, shares, where="mid", color=color, lw=1.4, label=title)
        ax.axhline(1 / NUM_PARTS, color="0.6", lw=1, ls=":")
    next(iter(panels.values())).legend(fontsize=8)
    return figure


def _panels(titles: Mapping[str, str], below: str, beside: str) -> tuple["Drawing", dict[str, "Axes"]]:
    from matplotlib.figure import Figure as Drawing

    lines = -(-len(titles) // _COLUMNS)
    figure = Drawing(figsize=(2.7 * _COLUMNS, 2.6 * lines + 0.3), layout="constrained")
    axes = figure.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False).flatten()
    for ax in axes[len(titles) :]:
        ax.set_axis_off()
    for ax, title in zip(axes, titles.values(), strict=False):
        ax.set_title(fill(title, 30), loc="left", fontsize=8, fontweight="bold")
    figure.supxlabel(below, fontsize=9)
    figure.supylabel(beside, fontsize=9)
    return figure, dict(zip(titles, axes, strict=False))
