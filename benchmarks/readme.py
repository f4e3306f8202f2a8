"""Write the numbers of README.md from records: `make readme` after `make demo`, `make bench` and `richbll bench`.

Text between `<!-- record NAME -->` and `<!-- end NAME -->` belongs to this script. With --check nothing is written, and
the exit code says whether README.md is what the records say.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fit_limits import EXACT, LEAST_SPEEDUP, MOST_YARDS, TIMES_FASTER, by_name, missed, times_faster, yards_to_L

from richbll_bench.records import Records
from richbll_bench.report.readme import results

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "records"


def demo_curve(record: dict[str, Any]) -> str:
    lines = ["| | inside the data | in the gap | outside | true curve within ±2 std |", "|---|---|---|---|---|"]
    for name, row in record["curve"].items():
        lines.append(
            f"| {name} | {row['inside']:.3f} | {row['gap']:.3f} | {row['outside']:.3f} | {100 * row['covered']:.0f} % |"
        )
    return "\n".join(lines)


def demo_table(record: dict[str, Any]) -> str:
    lines = ["| | NLL | CRPS | 90 % coverage | fit | predict |", "|---|---|---|---|---|---|"]
    for name, row in record["table"].items():
        lines.append(
            f"| {name} | {row['nll']:.3f} ± {row['nll_error']:.3f} | {row['crps']:.2f} ± {row['crps_error']:.2f} "
            f"| {100 * row['coverage']:.1f} ± {100 * row['coverage_error']:.1f} % "
            f"| {row['fit_ms']:.1f} ms | {row['predict_ms']:.2f} ms |"
        )
    return "\n".join(lines)


def predict_cost(record: dict[str, Any]) -> str:
    lines = ["| network | r | forward pass | predict ÷ forward | aim |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        aim = f"{row['limit']:.2f}" + (", missed" if row["ratio"] > row["limit"] else "")
        lines.append(f"| {row['network']} | {row['r']} | {row['forward_ms']:.2f} ms | {row['ratio']:.2f} | {aim} |")
    return "\n".join(lines)


def fit_cost(record: dict[str, Any]) -> str:
    lines = [
        "| network | method | fit, in yards | to L | error of the variances | predict ÷ forward |",
        "|---|---|---|---|---|---|",
    ]
    shown = [row for row in record["rows"] if row.get("yards") and "richbll trak" not in row["method"]]
    for row in sorted(shown, key=lambda row: row["network"]):
        to_L = f"{row['yards_to_L']:.2f}" if row.get("yards_to_L") is not None else ""
        error = f"{row['variance_error']:.1e}" if row.get("variance_error") is not None else ""
        predict = f"{row['predict_per_forward']:,.2f}" if row.get("predict_per_forward") is not None else ""
        elsewhere = " °" if row.get("cpu", record["cpu"]) != record["cpu"] else ""
        name = f"{row['network']} | {row['method']}{elsewhere}"
        lines.append(f"| {name} | {row['yards']:.2f} | {to_L} | {error} | {predict} |")
    if any(" °" in line for line in lines):
        lines += ["", f"On {record['cpu']}; rows with ° on another processor, beside the yard there."]
    broken, _ = missed(record)
    lines += ["", "What we aim at and miss:" if broken else "Nothing that we aim at is missed.", ""]
    return "\n".join(lines + [f"- {sentence}" for sentence in broken]).rstrip()


def aims(*records: dict[str, Any]) -> str:
    """What is aimed at, on two processors: fits of both, then fits of several processes."""
    fits, ranks = [by_name(record) for record in records[:2]], [record["rows"][-1] for record in records[2:]]
    lines = [f"| | aim | {records[0]['cpu']} | {records[1]['cpu']} |", "|---|---|---|---|"]
    for (network, method), most in MOST_YARDS.items():
        found = [yards_to_L(rows, network, method) for rows in fits]
        lines.append(_aim(f"{network}, {method}: yards to L", found, most, at_most=True))
    for network, method in TIMES_FASTER:
        found = [times_faster(rows)[network, method] for rows in fits]
        least = TIMES_FASTER[network, method]
        lines.append(_aim(f"{network}: {method} ÷ {EXACT}", found, least, at_most=False))
    title = f"{ranks[0]['network']}, {ranks[0]['ranks']} processes: times as fast as one"
    lines.append(_aim(title, [row["speedup"] for row in ranks], LEAST_SPEEDUP, at_most=False))
    return "\n".join(lines)


def _aim(title: str, found: list[float | None], aim: float, at_most: bool) -> str:
    told = []
    for value in found:
        is_missed = value is not None and (value > aim if at_most else value < aim)
        told.append("–" if value is None else f"{value:.2f}" + (", missed" if is_missed else ""))
    return f"| {title} | {'≤' if at_most else '≥'} {aim:g} | {' | '.join(told)} |"


def versions(record: dict[str, Any]) -> str:
    used = record["versions"]
    return f"Python {used['python']}, PyTorch {used['torch'].split('+')[0]} (CPU)."


SECTIONS: dict[str, tuple[list[str], Callable[..., str]]] = {
    "demo_curve": (["demo.json"], demo_curve),
    "demo_table": (["demo.json"], demo_table),
    "predict_cost": (["predict_cost.json"], predict_cost),
    "fit_cost": (["fit_cost.json"], fit_cost),
    "aims": (["fit_cost.json", "zen5/fit_cost.json", "ranks.json", "zen5/ranks.json"], aims),
    "versions": (["demo.json"], versions),
}


def rendered(text: str) -> str:
    """The text with every section written from its record."""
    bodies = {
        name: render(*(json.loads((RECORDS / file).read_text()) for file in files))
        for name, (files, render) in SECTIONS.items()
    }
    bodies["results"] = results(Records(ROOT / "records"))
    for name, body in bodies.items():
        before, rest = text.split(f"<!-- record {name} -->\n")
        _, after = rest.split(f"<!-- end {name} -->")
        text = f"{before}<!-- record {name} -->\n{body}\n<!-- end {name} -->{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if README.md is not up to date")
    options = parser.parse_args()
    readme = ROOT / "README.md"
    fresh = ROOT / "out" / "demo"
    if not options.check and (fresh / "demo.json").exists():
        shutil.copy(fresh / "demo.json", RECORDS / "demo.json")
        shutil.copy(fresh / "demo.png", ROOT / "docs" / "images" / "demo.png")
    text = rendered(readme.read_text())
    if options.check and text != readme.read_text():
        raise SystemExit("README.md does not say what the records say: run `make readme`.")
    readme.write_text(text)


if __name__ == "__main__":
    main()
