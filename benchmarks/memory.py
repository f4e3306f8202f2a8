"""Peak memory growth of one fit, in a process of its own: python benchmarks/memory.py NETWORK METHOD [--quick]

Resident memory at its highest during the fit, less what was resident before it (VmHWM, reset through clear_refs, and
VmRSS of /proc/self). The fit has run on eight rows before, so that code is loaded, and what that left in the allocator
has been given back. METHOD "yard" measures the yard itself.
"""

import argparse
import ctypes
import gc
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from fit_methods import methods
from fit_networks import Task, task
from yards import one_yard

_STATUS = Path("/proc/self/status")
_REHEARSAL = 8  # rows


def resident(field: str) -> int:
    """VmHWM or VmRSS in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {field}")
    return 1024 * int(found[1])


def _start_yard(subject: Task) -> Callable[[], object]:
    batches = subject.batches
    return lambda: one_yard(subject.model, batches)


def peak_growth(network: str, method: str, quick: bool) -> int:
    """Bytes, in this process."""
    subject = task(network, quick)
    start = _start_yard if method == "yard" else methods()[method]
    one_yard(subject.model, subject.batches[:1])
    start(subject.first_rows(_REHEARSAL))()
    ready = start(subject)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    kept = ready()
    growth = resident("VmHWM") - before
    del kept
    return growth


def measured_apart(network: str, method: str, quick: bool) -> dict[str, float | str | None]:
    """Megabytes, in a process of its own; where that does not work, None and why."""
    command = [sys.executable, str(Path(__file__)), network, method, *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"peak_mb": None, "memory_failed": f"exit code {done.returncode}: {last_line}"}
    return {"peak_mb": round(float(json.loads(done.stdout.splitlines()[-1])["bytes"]) / 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("method")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps({"bytes": peak_growth(options.network, options.method, options.quick)}))


if __name__ == "__main__":
    main()
