"""Which precision, and where: sums and factorisations are float64, on the device where that has it."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_WITHOUT_FLOAT64 = {"mps"}


def float64_device(device: torch.device) -> torch.device:
    """The device itself, or the CPU for one that has no float64.

    Examples:
        >>> float64_device(torch.device("mps"))
        device(type='cpu')
    """
    return torch.device("cpu") if device.type in _WITHOUT_FLOAT64 else device


def in_float64(values: Tensor) -> Tensor:
    """In float64, on the values' own device or, where that has no float64, on the CPU."""
    if values.device.type in _WITHOUT_FLOAT64:
        values = values.cpu()
    return values.to(torch.float64)


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Products keep the precision of their factors, also inside the user's autocast."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
