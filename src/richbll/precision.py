"""Which precision, and where: sums and factorisations are float64, on the device where that has it."""

from contextlib import AbstractContextManager, nullcontext
from types import EllipsisType

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


def summing_dtype(device: torch.device) -> torch.dtype:
    """What short sums on a device are formed in: float64, or float32 on one that has no float64."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


class Sum:
    """A running total: in float64, or, on a device without it, in float32 with what rounding loses kept beside it.

    Of every addition t = fl(h + x) the rounding error is a float32 number and can be had exactly (Knuth's TwoSum), so
    that the pair (t, sum of errors) is worth about 48 bits: a long sum is as good as its terms.

    Examples:
        >>> total = Sum((2,), torch.device("cpu"))
        >>> for _ in range(3):
        ...     total.add(torch.tensor([1.0, 2.0]))
        >>> total.value()
        tensor([3., 6.], dtype=torch.float64)
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._high = torch.zeros(shape, dtype=summing_dtype(device), device=device)
        self._low = torch.zeros_like(self._high) if self._high.dtype == torch.float32 else None

    def add(self, more: Tensor, at: tuple[slice, ...] | EllipsisType = ...) -> None:
        """Add to all of it, or to a part."""
        high = self._high[at]
        if self._low is None:
            high += more
            return
        total = high + more
        gained = total - high
        self._low[at] += (high - (total - gained)) + (more - gained)
        high.copy_(total)

    def value(self) -> Tensor:
        """In float64, where that can be."""
        return self._high if self._low is None else in_float64(self._high) + in_float64(self._low)


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Products keep the precision of their factors, also inside the user's autocast."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
