"""Pictures of the record of fit_cost.py: time in yards by network and method, and error against time."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

STYLES = {  # color and marker; the first word that fits a method's name
    "richbll exact": ("#1b4f8a", "o"),
    "richbll cross": ("#4d94d8", "s"),
    "richbll sketch": ("#2a9d8f", "D"),
    "richbll trak": ("#8ab17d", "P"),
    "TRAK q=512": ("#f2a65a", "^"),
    "TRAK q=2048": ("#b5442e", "v"),
    "TRAK q=2048, by batches": ("#7a2a1b", "v"),
    "laplace last layer": ("#c9c9c9", "<"),
    "laplace Kron": ("#8d8d8d", ">"),
    "laplace gp": ("#4a4a4a", "X"),
}


def style(method: str) -> tuple[str, str]:
    return next((value for word, value in STYLES.items() if method.startswith(word)), ("#000000", "."))


def label(row: dict[str, Any]) -> str:
    """A method's name in a picture, with what a peer leaves out: an asterisk for parameters, a number for rows."""
    name = str(row["method"]).replace(", others frozen", "").replace(", Curvlinops", "")
    if row.get("rows_read", row["N"]) < row["N"]:
        name += f", {row['rows_read']:,} rows"
    return name + ("*" if "others frozen" in row["method"] else "")


def short(yards: float) -> str:
    return f"{yards:,.0f}" if yards >= 100 else f"{yards:.3g}"


def networks(record: dict[str, Any]) -> list[str]:
    return list(record.get("networks", {}))


def shown(record: dict[str, Any], network: str) -> list[dict[str, Any]]:
    """Rows with a time, slowest first; of backends of the same thing only the one that it comes with."""
    rows = [
        row for row in record["rows"] if row["network"] == network and "yards" in row and "ASDL" not in row["method"]
    ]
    return sorted(rows, key=lambda row: -float(row["yards"]))


def plain_numbers(ax: Axes, which: str) -> None:
    axis = getattr(ax, f"{which}axis")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def bars(record: dict[str, Any], path: Path) -> None:
    """One panel per network, one bar per method, yards on a logarithmic scale."""
    names = networks(record)
    tallest = max(len(shown(record, name)) for name in names)
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.6 * columns, lines * (0.8 + 0.27 * tallest)), layout="constrained")
    most = max(float(row["yards"]) for name in names for row in shown(record, name))
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True).flatten()
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(axes, names, strict=False):
        rows, about = shown(record, name), record["networks"][name]
        for place, row in enumerate(rows):
            weight = "bold" if row["method"].startswith("richbll") else "normal"
            ax.barh(place, row["yards"], left=0, color=style(row["method"])[0], height=0.72)
            ax.text(1.12 * row["yards"], place, short(row["yards"]), va="center", fontsize=8.5, weight=weight)
        ax.set_yticks(range(len(rows)), [label(row) for row in rows], fontsize=8.5)
        for tick, row in zip(ax.get_yticklabels(), rows, strict=True):
            tick.set_weight("bold" if row["method"].startswith("richbll") else "normal")
        ax.set_xscale("log")
        ax.set_xlim(0.5, 4 * most)
        ax.axvline(1, color="black", lw=0.8, ls=":")
        plain_numbers(ax, "x")
        ax.tick_params(labelbottom=True, labelsize=8.5)
        ax.set_title(f"{name}\nN = {about['N']:,}, r = {about['r']:,}, m = {about['m']:,}", fontsize=9.5)
        ax.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(
        "time of fit in yards (1 = a forward and backward pass over the same data), one thread\n"
        "* with norms, attention and positions frozen, as it refuses them",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)


def errors(record: dict[str, Any], path: Path) -> None:
    """Error of what rich adds over plain, against the time it took."""
    names = networks(record)
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.0 * columns, 0.6 + 2.9 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    seen: dict[str, tuple[str, str]] = {}
    most = max(float(row["yards"]) for name in names for row in shown(record, name) if row.get("added_error"))
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(axes, names, strict=False):
        for row in shown(record, name):
            if not row.get("added_error"):
                continue
            seen[row["method"]] = style(row["method"])
            color, marker = seen[row["method"]]
            filled = "q=512" not in row["method"]
            ax.plot(
                row["yards"], row["added_error"], marker, color=color, ms=9, mfc=color if filled else "white", mew=1.8
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.axhline(1e-3, color="black", lw=0.8, ls=":")
        ax.set_xlim(0.7, 1.5 * most)
        plain_numbers(ax, "x")
        ax.grid(alpha=0.25)
        ax.set_title(name, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    handles = [
        Line2D([], [], ls="", marker=marker, color=color, ms=8, mfc="white" if "q=512" in name else color, label=name)
        for name, (color, marker) in sorted(seen.items(), key=lambda item: _place(item[0]))
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.supxlabel("time of fit in yards", fontsize=10)
    figure.supylabel("worst relative error of what\nrich adds over plain (dotted: limit)", fontsize=10)
    figure.savefig(path, dpi=110)


def _place(method: str) -> tuple[int, int]:
    """In the order of the styles, small sketches first."""
    number = next((number for number, word in enumerate(STYLES) if method.startswith(word)), len(STYLES))
    return number, int(method.partition("q=")[2].partition(",")[0] or 0)


def plot(record: dict[str, Any], folder: Path) -> list[Path]:
    """Both pictures, where the record has something to show."""
    paths = []
    rows = [row for name in networks(record) for row in shown(record, name)]
    if rows:
        paths.append(folder / "fit_cost.png")
        bars(record, paths[-1])
    if any(row.get("added_error") for row in rows):
        paths.append(folder / "fit_error.png")
        errors(record, paths[-1])
    return paths
