"""The picture of the record of growth.py."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

COLORS = {"MLP": "#2a6fbb", "CNN": "#b5442e"}
AXES = {"N": "rows N", "r": "last-layer features r", "m": "other parameters m", "c": "outputs c"}


def readable(ticks: list[int], apart: float = 2.5) -> list[int]:
    """Sizes that were measured, without those whose labels would touch."""
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick > apart * kept[-1]:
            kept.append(tick)
    return kept


def plot(record: dict[str, Any], folder: Path, solver: str = "exact") -> Path:
    """Seconds of fit (solid) and of a yard (dotted) along each axis, with the fitted exponents."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for ax, (axis, title) in zip(figure.subplots(1, 4), AXES.items(), strict=True):
        for row in record["rows"]:
            if row["axis"] != axis or row["solver"] != solver:
                continue
            at = [point[axis] for point in row["points"]]
            color = COLORS[row["family"]]
            label = f"{row['family']}: {row['fit_exponent']:.2f} ± {row['fit_exponent_error']:.2f}"
            ax.loglog(at, [p["fit_seconds"] for p in row["points"]], "o-", color=color, ms=4, lw=1.8, label=label)
            ax.loglog(at, [p["yard_seconds"] for p in row["points"]], ":", color=color, lw=1.3)
        ax.set_title(title, fontsize=11)
        ticks = sorted({point[axis] for row in record["rows"] if row["axis"] == axis for point in row["points"]})
        ax.set_xticks(readable(ticks))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.legend(frameon=False, fontsize=9, title="exponent of fit", title_fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * 8)  # room for the legend
    figure.axes[0].set_ylabel("seconds (dotted: one yard)")
    path = folder / "growth.png"
    figure.savefig(path, dpi=110)
    return path
