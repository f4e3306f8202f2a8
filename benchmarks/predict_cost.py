"""What `predict` costs beside the plain forward pass of the same model, in one run.

    make bench        (or: python benchmarks/predict_cost.py --out benchmarks/records/predict_cost.json)

The limits are 1.10 x on a CNN, and 1.15 (1 + r²/F) in general, with F the multiply-adds of a forward pass per example.
One thread; the two are timed in turn and the median of the paired ratios is taken. A call also costs about a tenth of
a millisecond of Python whatever its size, so a tiny network keeps its limit on large batches only: at 4096 rows it is
near it, on either side from run to run, and below that above it. Those rows are shown with their limit and do not fail
the run.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import FIXED_COST, SUBJECTS, Subject
from torch.utils.flop_counter import FlopCounterMode

import richbll
from richbll import RichBLL


def multiply_adds(subject: Subject) -> float:
    """F: multiply-adds of one forward pass per example."""
    with FlopCounterMode(display=False) as counter:  # with autograd on, or a transformer's fused layer is not counted
        subject.model(subject.x)
    return float(counter.get_total_flops()) / 2 / len(subject.x)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(name: str, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    subject = SUBJECTS[name]()
    uq = RichBLL(subject.model, noise_variance=1.0, enrich=False).fit(subject.x)  # predict is the same with and without
    r = [layer for layer in subject.model.modules() if isinstance(layer, torch.nn.Linear)][-1].in_features + 1

    def forward() -> object:
        with torch.no_grad():
            return subject.model(subject.x)

    def predict() -> object:
        return uq.predict(subject.x).std

    for _ in range(3):
        forward(), predict()
    plain, ratios = [], []
    for _ in range(repeats):
        plain.append(seconds(forward))
        ratios.append(seconds(predict) / plain[-1])
    F = multiply_adds(subject)
    limit = 1.10 if name.startswith("CNN") else 1.15 * (1 + r * r / F)
    return {
        "network": name,
        "r": r,
        "forward_multiply_adds": F,
        "forward_ms": 1e3 * statistics.median(plain),
        "ratio": statistics.median(ratios),
        "limit": limit,
        "limit_is_held": name not in FIXED_COST,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "records" / "predict_cost.json")
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, options.repeats) for name in SUBJECTS]
    print(f"{'network':34} {'r':>5} {'forward':>10} {'predict / forward':>18} {'limit':>7}")
    for row in rows:
        mark = "  above" if row["ratio"] > row["limit"] else ""
        timed = f"{row['forward_ms']:7.2f} ms {row['ratio']:18.3f} {row['limit']:7.2f}"
        print(f"{row['network']:34} {row['r']:5d} {timed}{mark}")
    versions = {"python": platform.python_version(), "torch": torch.__version__, "richbll": richbll.__version__}
    record = {"command": "make bench", "threads": 1, "repeats": options.repeats, "versions": versions, "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    above = [row["network"] for row in rows if row["limit_is_held"] and row["ratio"] > row["limit"]]
    if above:
        raise SystemExit(f"predict costs more than its limit on {', '.join(above)}")


if __name__ == "__main__":
    main()
