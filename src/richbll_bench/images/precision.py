"""Which arithmetic trains a CNN fastest on this machine, found out in a process that may die.

bfloat16 halves the work where the processor has matrix units for it. Some virtual machines announce such units and do
not have them: a convolution then ends the process with an illegal instruction. Others have none, and bfloat16 is slower
than float32. So both are tried on a few batches in a process of their own.
"""

import json
import subprocess
import sys
import time
from functools import lru_cache

import torch

from richbll_bench.errors import EngineError

PRECISIONS = ("auto", "float32", "bfloat16")
_WORTH_IT = 0.8  # of float32's time; a gain smaller than that is not worth the lost digits
_SECONDS = 120


def dtype_of(precision: str) -> torch.dtype | None:
    """What autocast is given; None is float32 throughout."""
    if precision not in PRECISIONS:
        raise EngineError(f"There is no precision {precision!r}; there are {', '.join(PRECISIONS)}.")
    if precision == "auto":
        precision = fastest()
    return torch.bfloat16 if precision == "bfloat16" else None


@lru_cache(maxsize=1)
def fastest() -> str:
    """ "bfloat16" where it works and is clearly faster, else "float32"."""
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    command = [sys.executable, "-c", "from richbll_bench.images.precision import trial; trial()"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
        seconds: dict[str, float] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return "float32"
    return "bfloat16" if seconds["bfloat16"] < _WORTH_IT * seconds["float32"] else "float32"


def trial() -> None:
    """Print the seconds of a training step in either arithmetic."""
    print(json.dumps({name: step_seconds(dtype) for name, dtype in _ARITHMETICS.items()}))


_ARITHMETICS = {"float32": None, "bfloat16": torch.bfloat16}


def step_seconds(dtype: torch.dtype | None, width: int = 32, batch_size: int = 128, repeats: int = 3) -> float:
    """Processor seconds of a forward and backward pass of the CNN, the least of some."""
    from richbll_bench.images.cnn import cnn

    model = cnn(width, seed=0)
    x = torch.randn(batch_size, 3, 32, 32).to(memory_format=torch.channels_last)
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            output = model(x)
        output.float().square().mean().backward()
        taken.append(time.process_time() - began)
    return min(taken)
