"""Time in yards: a yard is one forward and backward pass with weight gradients over the same batches.

Everything runs on one thread, in one process. A repeat times a yard, the thing itself and a yard again; its ratio is to
the mean of the two, and the median over repeats is what counts. Times are CPU times of the process, which other
processes on the machine disturb least; wall times are kept beside them.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batches = Sequence[tuple[Tensor, Tensor]]
_SHORTEST = 0.03  # seconds: below this a pass is repeated within one timing
_MOST_PASSES = 25
_VERY_LONG = 4  # times the seconds of a row: what takes longer is run once, without a warm-up


@dataclass(frozen=True)
class Timing:
    """Medians over repeats; `spread` is the range of the ratios over their median, where there are several."""

    yards: float
    yards_wall: float
    seconds: float
    yard_seconds: float
    spread: float | None
    repeats: int

    def as_row(self) -> dict[str, Any]:
        """For a record."""
        return asdict(self)


def clocks(run: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def one_yard(model: nn.Module, batches: Batches) -> None:
    parameters = list(model.parameters())
    for x, _ in batches:
        torch.autograd.grad(model(x).sum(), parameters)


def one_forward(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(x)
    return output


def steady(run: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall seconds of a short thing: the median of enough calls to be worth timing."""
    first = clocks(run)
    calls = min(_MOST_PASSES, int(_SHORTEST / max(first[1], 1e-9)))
    taken = [first] + [clocks(run) for _ in range(calls)]
    return statistics.median(cpu for cpu, _ in taken), statistics.median(wall for _, wall in taken)


def compared(
    run: Callable[[], Callable[[], object]], unit: Callable[[], object], repeats: int, seconds: float
) -> Timing:
    """What `run` makes ready, measured against the unit: up to so many repeats, and no new one after so many seconds.

    The first repeat warms up and is dropped; only where it took very long no other follows it.
    """
    steady(unit)
    cpu, wall, units, ratios, wall_ratios = [], [], [], [], []
    began = time.perf_counter()
    for _ in range(repeats + 1):
        ready = run()
        before = steady(unit)
        taken = clocks(ready)
        after = steady(unit)
        del ready
        cpu.append(taken[0])
        wall.append(taken[1])
        units.append((before[0] + after[0]) / 2)
        ratios.append(taken[0] / units[-1])
        wall_ratios.append(2 * taken[1] / (before[1] + after[1]))
        spent = time.perf_counter() - began
        if spent > seconds and (len(ratios) > 1 or spent > _VERY_LONG * seconds):
            break
    kept = slice(1 if len(ratios) > 1 else 0, None)
    middle = statistics.median(ratios[kept])
    return Timing(
        yards=middle,
        yards_wall=statistics.median(wall_ratios[kept]),
        seconds=statistics.median(wall[kept]),
        yard_seconds=statistics.median(units[kept]),
        spread=(max(ratios[kept]) - min(ratios[kept])) / middle if len(ratios) > 2 else None,
        repeats=len(ratios[kept]),
    )
