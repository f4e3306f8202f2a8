"""What a piece of work costs on one thread: processor seconds, bytes of tensors, and how either grows with a size."""

import ctypes
import gc
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from torch.autograd.profiler import profile

T = TypeVar("T")
_SHORTEST = 0.03  # seconds: what takes less is repeated
_MOST_CALLS = 25


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result, and the median seconds over enough calls to be worth timing.

    They are those of this process's processor alone, so that others on the machine disturb them least.
    """
    taken: list[float] = []
    while not taken or (sum(taken) < _SHORTEST and len(taken) < _MOST_CALLS):
        start = time.process_time()
        result = work()
        taken.append(max(time.process_time() - start, 1e-7))
    return result, statistics.median(taken)


def cpu_seconds(work: Callable[[], object]) -> float:
    """The seconds alone."""
    return timed(work)[1]


def tensor_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """The most that tensors held at once beyond what they held before, and what the result still holds.

    Examples:
        >>> import torch
        >>> peak, kept = tensor_bytes(lambda: torch.zeros(1000, 2).sum(dim=1))
        >>> peak >= 12_000, kept
        (True, 4000)
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler says on stderr that it starts and stops
    with profile(profile_memory=True) as found:
        result = work()
    live = peak = 0
    assert found.kineto_results is not None
    events = [event for event in found.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del result
    return peak, live


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost against log size, by least squares.

    Examples:
        >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
        2.0
    """
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def peak_growth(work: Callable[[], T]) -> tuple[T, float]:
    """The result, and by how many bytes the process grew at most while it was made; NaN where that cannot be told."""
    status, references = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier work left in the allocator would hide the growth
        references.write_text("5")  # from here on the highest is that of the work
        before = _resident(status, "VmRSS")
    except (OSError, ValueError, AttributeError, TypeError):
        return work(), math.nan
    result = work()
    return result, float(max(0, _resident(status, "VmHWM") - before))


def _resident(status: Path, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{status} has no {field}.")
    return 1024 * int(found[1])
