"""What richbll does, on a curve and on a table: python -m richbll_bench.demo --out out/demo

The curve has a gap in its inputs. There a plain Bayesian last layer is too sure of itself. The exact NTK-GP, which
counts every weight, is not, but each of its predictions costs a gradient. Rich-BLL lies between, and predicts as
fast as the plain one. The table scores them all on real data. Network, noise and prior are the same for every method,
and `demo.json` records settings and numbers. Half a minute on one core.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from torch import Tensor

from richbll import RegressionPredictive, __version__
from richbll_bench.metrics import coverage, gaussian_crps, gaussian_nll
from richbll_bench.nets import Pair, mean_squared_error, mlp, train
from richbll_bench.posthoc import Fit, bayesian_last_layer, network_alone, ntk_gp
from richbll_bench.toys.curve import END, curve_data, curve_inputs, regions, true_curve

Row = dict[str, float]
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """All that the numbers depend on."""

    seed: int = 0
    width: int = 50
    prior_variance: float = 1.0
    # The features of a one-dimensional input are nearly collinear. Without a ridge, the least-squares map from features
    # to gradients is arbitrary where the data does not reach, and can be far wider than the NTK-GP it stands for.
    # A large ridge takes Rich-BLL back to BLL.
    ridge: float = 1e-4
    subsample: float = 0.5
    curve_points: int = 120
    curve_noise_std: float = 0.2
    curve_epochs: int = 1500
    table_seed: int = 20261115
    table_splits: int = 10
    table_epochs: int = 100


TINY = Settings(curve_epochs=200, table_splits=2, table_epochs=5)


def methods(settings: Settings) -> dict[str, Fit]:
    """What is compared: the options differ only in what makes the method."""
    prior, ridge = settings.prior_variance, settings.ridge
    return {
        "MAP": network_alone,
        "BLL": bayesian_last_layer(prior, enrich=False),
        "Rich-BLL": bayesian_last_layer(prior, ridge=ridge),
        "Rich-BLL (S)": bayesian_last_layer(prior, ridge=ridge, subsample=settings.subsample, seed=settings.seed),
        "NTK-GP": ntk_gp(prior),
    }


# ---------------------------------------------------------------------- the curve


@dataclass(frozen=True)
class Curve:
    """Training data, and the predictions of every method on a grid."""

    data: Pair
    grid: Tensor  # (n, 1)
    predictions: dict[str, RegressionPredictive]


def run_curve(settings: Settings) -> Curve:
    """Train once, then predict with every method."""
    data = curve_data(settings.curve_points, settings.curve_noise_std, settings.seed)
    noise_variance = settings.curve_noise_std**2
    model = mlp(1, settings.width, settings.seed)
    train(model, data, epochs=settings.curve_epochs, batch_size=len(data[0]), learning_rate=1e-2, seed=settings.seed)
    inputs = curve_inputs()
    fits = {name: fit for name, fit in methods(settings).items() if name != "MAP"}
    return Curve(data, inputs, {name: fit(model, data, noise_variance)(inputs) for name, fit in fits.items()})


def curve_row(grid: Tensor, pred: RegressionPredictive) -> Row:
    """Mean epistemic standard deviation by region, and the share of the true curve within two of them."""
    std = pred.epistemic_variance.sqrt()
    covered = (pred.mean - true_curve(grid)).abs() <= 2 * std
    means = {name: float(std[where].mean()) for name, where in regions(grid).items()}
    return means | {"covered": float(covered.double().mean())}


def draw_curve(curve: Curve, path: Path) -> None:
    """One panel per method, on the same axes."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True).flatten()
    for ax, (name, pred) in zip(axes, curve.predictions.items(), strict=True):
        if name == "Rich-BLL (S)":
            draw_edges(ax, curve, curve.predictions["Rich-BLL"])
        draw_panel(ax, curve, pred)
        ax.set_title(name, loc="left", fontweight="bold")
        gap = curve_row(curve.grid, pred)["gap"]
        ax.set_title(f"mean std in the gap {gap:.2f}", loc="right", fontsize=10, color="0.4")
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    labels, handles = list(entries), list(entries.values())
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=130)


def draw_edges(ax: Axes, curve: Curve, pred: RegressionPredictive) -> None:
    """The epistemic band of another method as two thin lines, to compare."""
    grid, mean = curve.grid.flatten().numpy(), pred.mean.flatten().numpy()
    half = 2 * pred.epistemic_variance.sqrt().flatten().numpy()
    ax.plot(grid, mean - half, color="#b5442e", lw=1, ls="--", label="edges of Rich-BLL")
    ax.plot(grid, mean + half, color="#b5442e", lw=1, ls="--")


def draw_panel(ax: Axes, curve: Curve, pred: RegressionPredictive) -> None:
    """Training points, the true curve, and the prediction with both its bands."""
    blue = "#2a6fbb"
    grid, truth, mean = (t.flatten().numpy() for t in (curve.grid, true_curve(curve.grid), pred.mean))
    narrow, wide = (2 * v.sqrt().flatten().numpy() for v in (pred.epistemic_variance, pred.variance))
    ax.fill_between(grid, mean - narrow, mean + narrow, color=blue, alpha=0.4, lw=0, label="±2 std, epistemic")
    ax.fill_between(grid, mean - wide, mean + wide, color=blue, alpha=0.15, lw=0, label="with noise")
    ax.plot(grid, mean, color=blue, lw=1.5, label="network")
    ax.plot(grid, truth, color="black", lw=1.2, ls=":", label="true curve")
    ax.plot(*(t.flatten().numpy() for t in curve.data), ".", color="black", ms=3, alpha=0.6, label="training data")
    ax.set(xlim=(-END, END), ylim=(-3.2, 3.2))
    ax.spines[["top", "right"]].set_visible(False)


# ---------------------------------------------------------------------- the table


def diabetes_split(seed: int) -> tuple[Pair, Pair, Pair, float]:
    """Training, validation and test rows (60/20/20 %) standardised by the training rows, and the target's scale."""
    inputs, targets = (torch.as_tensor(array, dtype=torch.float32) for array in load_diabetes(return_X_y=True))
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))
    rows = order[:265], order[265:353], order[353:]
    x = (inputs - inputs[rows[0]].mean(dim=0)) / inputs[rows[0]].std(dim=0)  # (442, 10)
    scale = targets[rows[0]].std()
    y = ((targets - targets[rows[0]].mean()) / scale).unsqueeze(-1)  # (442, 1)
    training, validation, test = ((x[r], y[r]) for r in rows)
    return training, validation, test, float(scale)


def run_split(settings: Settings, seed: int) -> dict[str, Row]:
    """Train with early stopping, then score every method on the test rows, in the target's own unit."""
    training, validation, (x, y), scale = diabetes_split(seed)
    model = mlp(x.shape[1], settings.width, seed)
    epochs = settings.table_epochs
    train(model, training, epochs=epochs, batch_size=32, learning_rate=1e-3, seed=seed, validation=validation)
    with torch.no_grad():
        noise_variance = float(mean_squared_error(model, validation))
    rows = {}
    for name, fit in methods(settings).items():
        predict, fit_seconds = timed(partial(fit, model, training, noise_variance))
        pred = predict(x)
        predict_seconds = min(timed(partial(predict, x))[1] for _ in range(5))
        scored = pred.mean * scale, pred.variance * scale**2, y * scale
        rows[name] = {
            "nll": float(gaussian_nll(*scored)),
            "crps": float(gaussian_crps(*scored)),
            "coverage": float(coverage(*scored, level=0.9)),
            "fit_ms": 1e3 * fit_seconds,
            "predict_ms": 1e3 * predict_seconds,
        }
    return rows


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """A result and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def run_table(settings: Settings) -> list[dict[str, Row]]:
    """One dictionary of rows per split."""
    generator = torch.Generator().manual_seed(settings.table_seed)
    seeds = torch.randint(2**31, (settings.table_splits,), generator=generator).tolist()
    return [run_split(settings, seed) for seed in seeds]


def table_row(name: str, splits: Sequence[dict[str, Row]]) -> Row:
    """Means and standard errors over the splits; of times, medians."""
    columns = {key: [split[name][key] for split in splits] for key in splits[0][name]}
    scores, times = ("nll", "crps", "coverage"), ("fit_ms", "predict_ms")
    errors = {f"{key}_error": statistics.stdev(columns[key]) / len(splits) ** 0.5 for key in scores}
    means = {key: statistics.mean(columns[key]) for key in scores}
    return means | errors | {key: statistics.median(columns[key]) for key in times}


# ---------------------------------------------------------------------- telling

READ_CURVE = """\
  The NTK-GP counts every weight and is the reference. BLL counts those of the last layer alone, so it is too sure
  where there is no data. Rich-BLL makes up part of the difference and predicts as fast; (S) from a part of the rows.
"""

READ_TABLE = """\
  Lower NLL and CRPS are better, coverage should be 90 %; fit on 265 patients, predict for 89. The noise is the error on
  validation data, which contains the network's own error already, and test patients are like those seen: here epistemic
  variance comes on top, and the widest method is the most cautious. It pays off where inputs are new, as on the curve.
"""


def print_curve(rows: dict[str, Row]) -> None:
    """The curve in numbers, and how to read them."""
    print("Curve: mean epistemic standard deviation by region, and the share of the true curve within ±2 of them")
    print(f"  {'':14}{'inside the data':>16}{'in the gap':>12}{'outside':>10}{'true curve within':>20}")
    for name, row in rows.items():
        print(f"  {name:14}{row['inside']:16.3f}{row['gap']:12.3f}{row['outside']:10.3f}{row['covered']:20.0%}")
    print(READ_CURVE)


def print_table(rows: dict[str, Row], num_splits: int) -> None:
    """The table, and how to read it."""
    print(f"Table: diabetes progression (442 patients, score 25 to 346), mean ± standard error of {num_splits} splits")
    print(f"  {'':14}{'NLL [nats]':>15}{'CRPS [score]':>15}{'90 % coverage':>17}{'fit':>11}{'predict':>12}")
    for name, row in rows.items():
        nll = f"{row['nll']:.3f} ± {row['nll_error']:.3f}"
        crps = f"{row['crps']:.2f} ± {row['crps_error']:.2f}"
        covered = f"{row['coverage']:.1%} ± {row['coverage_error']:.1%}"
        fit_time, predict_time = f"{row['fit_ms']:.1f} ms", f"{row['predict_ms']:.2f} ms"
        print(f"  {name:14}{nll:>15}{crps:>15}{covered:>17}{fit_time:>11}{predict_time:>12}")
    print(READ_TABLE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both parts, print them, and write `demo.png` and `demo.json`."""
    parser = argparse.ArgumentParser(prog="python -m richbll_bench.demo", description="richbll on a curve and a table.")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for demo.png and demo.json")
    parser.add_argument("--tiny", action="store_true", help="a few seconds: hardly any training, two splits")
    options = parser.parse_args(arguments)
    settings, out = TINY if options.tiny else Settings(), options.out

    curve = run_curve(settings)
    curve_rows = {name: curve_row(curve.grid, pred) for name, pred in curve.predictions.items()}
    print_curve(curve_rows)
    splits = run_table(settings)
    table_rows = {name: table_row(name, splits) for name in splits[0]}
    print_table(table_rows, len(splits))

    out.mkdir(parents=True, exist_ok=True)
    draw_curve(curve, out / "demo.png")
    versions = {"python": platform.python_version(), "torch": torch.__version__, "richbll": __version__}
    record = {"settings": asdict(settings), "versions": versions, "num_threads": torch.get_num_threads()}
    record |= {"curve": curve_rows, "table": table_rows, "splits": splits}
    (out / "demo.json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"Picture: {out / 'demo.png'}   numbers: {out / 'demo.json'}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the matrices are small: a second thread only waits
    main()
