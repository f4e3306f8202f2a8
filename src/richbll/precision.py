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

    The pair (high, low) is worth about 48 bits: every addition is exact but for the rounding of low, which is below
    2⁻⁴⁸ of the total.

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
        if self._low is None:
            part = self._high if at is ... else self._high[at]
            part += more
            return
        total, lost = _two_sum(self._high[at], more)
        self._high[at], self._low[at] = _two_sum(total, self._low[at] + lost)

    def value(self) -> Tensor:
        """In float64, where that can be."""
        return self._high if self._low is None else in_float64(self._high) + in_float64(self._low)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """fl(a + b) and what rounding lost of it, which is a number of the same precision (Knuth)."""
    total = a + b
    gained = total - a
    return total, (a - (total - gained)) + (b - gained)


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Products keep the precision of their factors, also inside the user's autocast."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
