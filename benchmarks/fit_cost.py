"""What it costs to get from (model, data) to L, and how exact L is: our solvers beside TRAK and laplace-torch.

    python benchmarks/install_peers.py      (once; without it the peers' rows are left out, with a reason)
    python benchmarks/fit_cost.py           (an hour on one core; --only, --method and --missing measure some rows)

One thread. Times are in yards: forward and backward passes with weight gradients over the same batches, timed right
before and after each fit (yards.py). Memory is the growth of a process of its own (memory.py), but for fits that take
longer than the seconds of a row. Errors are against literal float64 algebra that shares no code with richbll
(truth.py), at held-out inputs:

    AtA_error        ‖AᵀA − truth‖ / ‖truth‖, Frobenius
    variance_error   the worst |v − truth| / truth of the epistemic variance v
    added_error      of what rich adds over plain, v − v_plain with the same noise: the worst |difference| / truth
    added_median     the same, the median over the held-out inputs

`yards` is the whole fit, `yards_to_L` that without the posterior, which is timed apart.

Rows are keyed by network and method, and rewritten when measured again. After the record is written, the program fails
if a limit is missed (fit_limits.py).
"""

import argparse
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import recording
import torch
from fit_limits import missed
from fit_methods import Fit, Start, methods
from fit_networks import RELATIVE_RIDGE, SPECS, Task, task
from fit_plots import plot
from memory import measured_apart
from peers import NotMeasuredError
from yards import compared, one_forward, one_yard, steady

_PREDICTING = 0.2  # of the seconds for a row are for predictions


def errors(fit: Fit, subject: Task) -> dict[str, float]:
    """Against the truth, as the docstring above says."""
    truth, found = subject.truth, fit.AtA()
    if found is None:
        return {}
    values = {"AtA_error": float((found.double() - truth.AtA).norm() / truth.AtA.norm())}
    both = fit.variances(subject.x_new)
    if both is not None:
        rich, plain = both
        off = (rich - plain - truth.added).abs()
        values |= {
            "variance_error": float(((rich - truth.rich).abs() / truth.rich).max()),
            "added_error": float((off / truth.added).max()),
            "added_median": float((off / truth.added).median()),
        }
    return values


def measure(subject: Task, name: str, start: Start, options: argparse.Namespace) -> dict[str, Any]:
    """One row: time, errors, prediction and memory; or why there is none."""
    row: dict[str, Any] = {"network": subject.name, "method": name, "N": len(subject.x)}
    last: list[Fit] = []

    def ready() -> Any:
        run = start(subject)
        last.clear()
        return lambda: last.append(run())

    try:
        timing = compared(ready, lambda: one_yard(subject.model, subject.batches), options.repeats, options.seconds)
        row |= timing.as_row() | errors(last[0], subject)
        if (rest := getattr(last[0], "after_L", None)) is not None:
            row |= {"yards_to_L": timing.yards - steady(rest())[0] / timing.yard_seconds}
        row |= {
            "covers": getattr(last[0], "covers", 1.0),
            "rows_read": getattr(last[0], "rows", None) or len(subject.x),
        }
        if not name.startswith("TRAK"):
            asked = compared(
                lambda: lambda: last[0].predict(subject.x_new),
                lambda: one_forward(subject.model, subject.x_new),
                10 * options.repeats,
                _PREDICTING * options.seconds,
            )
            row |= {"predict_per_forward": asked.yards}
        last.clear()
        if not options.no_memory and timing.seconds < options.seconds:  # it takes one more fit
            row |= measured_apart(subject.name, name, options.quick)
    except NotMeasuredError as reason:
        return row | {"skipped": str(reason)}
    except Exception as error:  # whatever a method refuses with is what there is to say about it
        return row | {"refused": f"{type(error).__name__}: {error}".strip()}
    return row


def about(subject: Task, options: argparse.Namespace) -> dict[str, Any]:
    """What a table needs to know of a network."""
    truth, spec = subject.truth, subject.spec
    yard = statistics.median(steady(lambda: one_yard(subject.model, subject.batches))[0] for _ in range(3))
    return {
        "N": len(subject.x),
        "r": subject.r,
        "m": subject.m,
        "rank": truth.rank,
        "batch_size": spec.batch_size,
        "held_out": len(subject.x_new),
        "ridge": truth.ridge,
        "noise_variance": subject.noise_variance,
        "truth": "Σ (a aᵀ + 1) ∘ (g gᵀ)" if spec.by_kernel else "vmap(grad)",
        "added_share": float((truth.added / truth.rich).median()),
        "yard_ms": 1e3 * yard,
        "yard_mb": None if options.no_memory else measured_apart(subject.name, "yard", options.quick)["peak_mb"],
    }


def told(row: dict[str, Any]) -> str:
    """One line of the table."""
    start = f"{row['network']:20} {row['method']:34}"
    for word in ("refused", "skipped"):
        if word in row:
            return f"{start} {word}: {row[word][:90]}"

    def cell(name: str, width: int, form: str) -> str:
        return f"{row[name]:{width}{form}}" if row.get(name) is not None else " " * (width - 1) + "–"

    return (
        f"{start} {row['yards']:8.2f} {cell('spread', 6, '.2f')} {row['repeats']:3d} {cell('peak_mb', 8, '.0f')} "
        f"{cell('AtA_error', 9, '.1e')} {cell('variance_error', 9, '.1e')} {cell('added_error', 9, '.1e')} "
        f"{cell('predict_per_forward', 9, '.2f')}"
    )


HEAD = f"{'network':20} {'method':34} {'yards':>8} {'spread':>6} {'n':>3} {'peak MB':>8} {'AᵀA':>9} {'variance':>9}"
HEAD += f" {'added':>9} {'predict÷f':>9}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NETWORK", choices=list(SPECS), help="may be repeated")
    parser.add_argument("--method", action="append", metavar="WORD", help="methods whose name holds this; repeatable")
    parser.add_argument("--missing", action="store_true", help="only rows that the record does not have")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=25.0, help="no new repeat of a row after these")
    parser.add_argument("--quick", action="store_true", help="small sizes, another record: to see that it runs")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", action="store_true", help="only draw and judge the record that is there")
    return parser.parse_args()


def chosen(name: str, options: argparse.Namespace) -> dict[str, Start]:
    """The methods to run on a network now."""
    found = {key: start for key, start in methods().items() if any(w in key for w in options.method or [""])}
    if options.missing:
        done = {row["method"] for row in recording.read(options.out)["rows"] if row["network"] == name}
        found = {key: start for key, start in found.items() if key not in done}
    return found


def run(options: argparse.Namespace) -> None:
    settings = {
        "command": "python benchmarks/fit_cost.py" + (" --quick" if options.quick else ""),
        "settings": {
            "noise_variance": "mean squared error at the held-out inputs",
            "relative_ridge": RELATIVE_RIDGE,
            "repeats": options.repeats,
            "seconds_per_row": options.seconds,
            "clock": "CPU time of the process",
        },
    }
    for name in options.only or SPECS:
        todo = chosen(name, options)
        if not todo:
            continue
        subject = task(name, options.quick)
        recording.write(options.out, ("network", "method"), [], networks={name: about(subject, options)}, **settings)
        for method, start in todo.items():
            began = time.perf_counter()
            row = measure(subject, method, start, options)
            recording.write(options.out, ("network", "method"), [row])
            print(f"{told(row)}   [{time.perf_counter() - began:.0f} s]", flush=True)


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.out is None:
        options.out = recording.cache_folder() / "fit_cost_quick.json" if options.quick else None
    options.out = options.out or recording.RECORDS / "fit_cost.json"
    print(HEAD)
    if not options.plot:
        run(options)
    recording.arrange(options.out, network=list(SPECS), method=list(methods()))
    record = recording.read(options.out)
    for row in record["rows"] if options.plot else []:
        print(told(row))
    plot(record, options.out.parent)
    broken, unknown = missed(record, options.quick)
    for sentence in unknown:
        print(f"not judged: {sentence}")
    whole = not (options.only or options.method or options.plot)
    own = [sentence for sentence in unknown if whole and "against" not in sentence]
    if broken or own:
        raise SystemExit("Limits missed:\n  " + "\n  ".join([*broken, *own]))


if __name__ == "__main__":
    main()
