"""`fit` on two ranks against one: python benchmarks/ranks.py

Each rank is a process with one thread; they talk by gloo, and each reads its shard through a DistributedSampler. Timed
by the wall clock, from a barrier to the slowest rank's end, one rank and two in turn; the median of all repeats. Every
rank must end with all of the data's posterior: the number of examples and AᵀA are compared with the run on one rank.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import recording
import torch
import torch.distributed as dist
from fit_limits import LEAST_SPEEDUP
from fit_networks import SPECS, task
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from yards import one_yard

from richbll import RichBLL


def worker(network: str, solver: str, repeats: int, quick: bool, out: Path) -> None:
    """One rank, started by torchrun; rank 0 writes what was found."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    subject = task(network, quick)
    dataset = TensorDataset(subject.x, subject.y)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=False)
    rows = Subset(dataset, list(sampler))
    loader = DataLoader(dataset, batch_size=subject.spec.batch_size, sampler=sampler)
    ridge, noise = subject.truth.ridge, subject.noise_variance

    def fit() -> RichBLL:
        uq = RichBLL(subject.model, noise_variance=noise, ridge=ridge, solver=solver, progress=False)
        return uq.fit(loader)

    shard = [(x, y) for x, y in DataLoader(rows, batch_size=subject.spec.batch_size)]
    seconds, yards = [], []
    for _ in range(repeats + 1):
        dist.barrier()
        began = time.perf_counter()
        uq = fit()
        seconds.append(slowest(time.perf_counter() - began))
        dist.barrier()
        began = time.perf_counter()
        one_yard(subject.model, shard)
        yards.append(slowest(time.perf_counter() - began))
    AtA = uq._state.projections[0].AtA(uq.ridge)[0].double()
    found = {
        "ranks": dist.get_world_size(),
        "fit_seconds": seconds[1:],
        "yard_seconds": yards[1:],
        "num_data": uq.num_data,
        "AtA_error": float((AtA - subject.truth.AtA).norm() / subject.truth.AtA.norm()),
    }
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.destroy_process_group()


def slowest(seconds: float) -> float:
    """The largest over the ranks."""
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def launched(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """A run under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        told = ["--worker", str(out), "--network", options.network, "--solver", options.solver]
        told += ["--repeats", str(options.repeats), *(["--quick"] if options.quick else [])]
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run([*torchrun, __file__, *told], env=os.environ | threads, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{ranks} rank(s) failed:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for one rank and one for two, launched in turn, as the speed of a machine changes over minutes."""
    launches = [(ranks, launched(ranks, options)) for _ in range(options.launches) for ranks in (1, 2)]
    rows = []
    for ranks in (1, 2):
        own = [found for number, found in launches if number == ranks]
        times = {
            name: statistics.median(second for found in own for second in found[name])
            for name in ("fit_seconds", "yard_seconds")
        }
        told = {"network": options.network, "solver": options.solver}
        rows.append(told | {"repeats": options.launches * options.repeats} | own[-1] | times)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="CNN width 32", choices=list(SPECS))
    parser.add_argument("--solver", default="exact")
    parser.add_argument("--repeats", type=int, default=6, help="of a fit, in every launch")
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="small sizes, another record: to see that it runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.network, options.solver, options.repeats, options.quick, options.worker)
        return
    num_data = len(task(options.network, options.quick).x)
    _ = task(options.network, options.quick).truth  # into the cache, once, before several processes want it
    rows = measured(options)
    for row in rows:
        row["speedup"] = rows[0]["fit_seconds"] / row["fit_seconds"]
        row["has_all_data"] = row["num_data"] == num_data
        print(
            f"{row['network']}, {row['ranks']} rank(s): fit {row['fit_seconds']:.3f} s ({row['speedup']:.2f} ×), yard "
            f"{row['yard_seconds']:.3f} s, {row['num_data']} examples, AᵀA off by {row['AtA_error']:.1e}"
        )
    quick_out = recording.cache_folder() / "ranks_quick.json"
    out = options.out or (quick_out if options.quick else recording.RECORDS / "ranks.json")
    recording.write(out, ("network", "solver", "ranks"), rows, command="python benchmarks/ranks.py")
    if not all(row["has_all_data"] for row in rows):
        raise SystemExit(f"A rank ended without all of the {num_data} examples: fit did not merge the shards.")
    if not options.quick and rows[-1]["speedup"] < LEAST_SPEEDUP:
        raise SystemExit(f"Two ranks are {rows[-1]['speedup']:.3f} times as fast as one, limit {LEAST_SPEEDUP}")


if __name__ == "__main__":
    main()
