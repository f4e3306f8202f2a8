"""How the time of `fit` grows with N, r, m and c: python benchmarks/growth.py (a few minutes on one core)

One quantity is varied over at least four sizes while the others stay (m is held near where r varies, by the width of
the layer before), on a family of MLPs and one of small CNNs. One thread, CPU time, the median of repeats. The exponent
is the slope of log time against log size by least squares, with its standard error; the yard's own slope stands beside.

The paper's table counts what comes after the features: O(r³ + N r²) time, O(r²) memory for Rich-BLL, and the price of
the gradients, O(N m q) for its random projection, is left to the appendix. So its exponents are those of N and r alone.
"""

import argparse
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import recording
import torch
from growth_plot import plot
from torch import Tensor, nn
from yards import clocks, one_yard, steady

from richbll import RichBLL

_BATCH = 128
PAPER = {  # Table 1, without subsampling
    "NTK-GP/LLA": {"time": "N³ + N²p", "memory": "N²"},
    "NNGP/LL-LLA/BLL": {"time": "r³ + N r²", "memory": "r²"},
    "Rich-BLL": {"time": "r³ + N r²", "memory": "r²"},
    "Rich-BLL (S)": {"time": "r³ + k r²", "memory": "r²"},
}
# What the table says of each axis when the others stay: from below to above, as one term or the other leads.
PAPER_EXPONENTS = {"N": (0.0, 1.0), "r": (2.0, 3.0), "m": (0.0, 0.0), "c": None}


@dataclass(frozen=True)
class Size:
    """A member of a family: N rows, `before` units ahead of the last hidden layer of r − 1, and c outputs."""

    N: int
    r: int
    before: int
    c: int = 1


def mlp(size: Size) -> tuple[nn.Module, Tensor]:
    width = size.r - 1
    model = nn.Sequential(
        nn.Linear(32, size.before), nn.ReLU(), nn.Linear(size.before, width), nn.ReLU(), nn.Linear(width, size.c)
    )
    return model, torch.randn(size.N, 32)


def cnn(size: Size) -> tuple[nn.Module, Tensor]:
    """Three convolutions on 16 × 16 images."""
    h, width = size.before, size.r - 1
    model = nn.Sequential(
        *(nn.Conv2d(3, h, 3, padding=1), nn.ReLU(), nn.Conv2d(h, h, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(h, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(width, size.c),
    )
    return model, torch.randn(size.N, 3, 16, 16)


def others(model: nn.Module) -> int:
    """m."""
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    return sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in last.parameters())


def near_m(family: Callable[[Size], tuple[nn.Module, Tensor]], size: Size, m: int) -> Size:
    """The size whose m comes nearest, by the width of the layer before the last."""
    candidates = [replace(size, before=before, N=1) for before in range(4, 2049, 4)]
    counts = [_count(family.__name__, candidate) for candidate in candidates]
    nearest = min(range(len(counts)), key=lambda i: abs(counts[i] - m))
    return replace(size, before=candidates[nearest].before)


def _count(family: str, size: Size) -> int:
    h, width = size.before, size.r - 1
    if family == "mlp":
        return 33 * h + (h + 1) * width
    return 28 * h + (9 * h + 1) * h + (9 * h + 1) * width


def axes(family: Callable[[Size], tuple[nn.Module, Tensor]]) -> dict[str, list[Size]]:
    """The sizes along each axis."""
    if family is mlp:
        base = Size(N=2048, r=128, before=256)
        return {
            "N": [replace(base, N=N) for N in (1024, 2048, 4096, 8192, 16384)],
            "r": [near_m(mlp, replace(base, r=r), 65_000) for r in (32, 64, 128, 256, 512)],
            "m": [replace(base, before=before) for before in (128, 256, 512, 1024, 2048)],
            "c": [replace(base, c=c) for c in (1, 2, 4, 8, 16)],
        }
    base = Size(N=256, r=64, before=32)
    return {
        "N": [replace(base, N=N) for N in (128, 256, 512, 1024, 2048)],
        "r": [near_m(cnn, replace(base, r=r), 60_000) for r in (16, 32, 64, 128, 256)],
        "m": [replace(base, before=before) for before in (16, 32, 64, 128)],
        "c": [replace(base, c=c) for c in (1, 2, 4, 8)],
    }


FAMILIES: dict[str, Callable[[Size], tuple[nn.Module, Tensor]]] = {"MLP": mlp, "CNN": cnn}


def slope(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Of log value against log size, and its standard error."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    found = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    left = sum((b - mean_y - found * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return found, math.sqrt(left / (len(x) - 2) / spread)


def timed(family: str, size: Size, solver: str, repeats: int) -> tuple[int, float, float]:
    """m, and the seconds of a fit and of a yard: medians after one run to warm up."""
    torch.manual_seed(0)
    model, x = FAMILIES[family](size)
    model.eval()
    y = torch.zeros(size.N, size.c)
    batches = list(zip(torch.split(x, _BATCH), torch.split(y, _BATCH), strict=True))

    def fit() -> object:
        options: dict[str, Any] = {"noise_variance": 0.1, "ridge": 1.0, "memory_budget": "4GiB", "progress": False}
        return RichBLL(model, solver=solver, **options).fit(batches)

    taken = [(clocks(fit)[0], steady(lambda: one_yard(model, batches))[0]) for _ in range(repeats + 1)][1:]
    return others(model), *(statistics.median(each) for each in zip(*taken, strict=True))


def measure(family: str, axis: str, solver: str, repeats: int, quick: bool) -> dict[str, Any]:
    """One row: the times along an axis and their exponents."""
    sizes = axes(FAMILIES[family])[axis]
    if quick:
        sizes = [replace(size, N=size.N // 4) for size in sizes[:4]]
    points = []
    for size in sizes:
        m, fit, yard = timed(family, size, solver, repeats)
        points.append({"N": size.N, "r": size.r, "m": m, "c": size.c, "fit_seconds": fit, "yard_seconds": yard})
    along = [float(point[axis]) for point in points]
    row: dict[str, Any] = {"family": family, "axis": axis, "solver": solver, "repeats": repeats, "points": points}
    for name in ("fit", "yard"):
        exponent, error = slope(along, [float(point[f"{name}_seconds"]) for point in points])
        row |= {f"{name}_exponent": exponent, f"{name}_exponent_error": error}
    return row | {"paper_exponent": PAPER_EXPONENTS[axis]}


def told(row: dict[str, Any]) -> str:
    paper = row["paper_exponent"]
    of_paper = "–" if paper is None else "–".join(f"{value:g}" for value in dict.fromkeys(paper))
    sizes = ", ".join(f"{point[row['axis']]:,}" for point in row["points"])
    return (
        f"{row['family']:4} {row['axis']:2} {row['fit_exponent']:6.2f} ± {row['fit_exponent_error']:.2f} "
        f"{row['yard_exponent']:6.2f} ± {row['yard_exponent_error']:.2f} {of_paper:>6}   "
        f"{1e3 * row['points'][0]['fit_seconds']:.0f} … {1e3 * row['points'][-1]['fit_seconds']:.0f} ms at {sizes}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(FAMILIES), help="one family")
    parser.add_argument("--axis", choices=list(PAPER_EXPONENTS))
    parser.add_argument("--solver", default="exact")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, another record: to see that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    quick_out = recording.cache_folder() / "growth_quick.json"
    out = options.out or (quick_out if options.quick else recording.RECORDS / "growth.json")
    print(f"{'':7} {'fit':>6}        {'yard':>6}        {'paper':>6}   (exponent ± standard error)")
    for family in [options.only] if options.only else FAMILIES:
        for axis in [options.axis] if options.axis else PAPER_EXPONENTS:
            row = measure(family, axis, options.solver, options.repeats, options.quick)
            keys = ("family", "axis", "solver")
            recording.write(out, keys, [row], command="python benchmarks/growth.py", paper=PAPER)
            print(told(row), flush=True)
    plot(recording.read(out), out.parent)


if __name__ == "__main__":
    main()
