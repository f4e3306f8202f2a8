"""Max-pooling of images on a CPU, as torch does it faster.

torch's kernel compares one number at a time where the channels come first, and as many as the processor can where they
come last. The largest numbers and their places are the same to the bit.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from richbll.network.rules.rule import is_run_again

_LEAST = 4  # channels, so that there is something to compare at once
_WORTH_IT = 2**14  # numbers: below that the copies cost as much as they save
_PREPARED = (torch.float32, torch.float64)


def pooled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `func(*args, **kwargs)` gives, of whatever function."""
    if func is not functional.max_pool2d or not _is_slow(*args, **kwargs):
        return func(*args, **kwargs)
    return _max_pooled(*args, **kwargs)


def _is_slow(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, *others: Any, **named: Any
) -> bool:
    return (
        type(input) is Tensor
        and input.dim() == 4
        and input.device.type == "cpu"
        and input.dtype in _PREPARED
        and input.is_contiguous()
        and input.shape[1] >= _LEAST
        and input.numel() >= _WORTH_IT
        and not (named.get("return_indices") or any(others[1:]))
        and torch._C._functorch.maybe_current_level() is None  # in a vmap of the model's own it is torch's
        and not is_run_again()
    )


def _max_pooled(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    sizes = [_pair(value) for value in (kernel_size, kernel_size if stride is None else stride, padding, dilation)]
    found: Tensor = _ChannelsLast.apply(input, *sizes, ceil_mode)  # type: ignore[no-untyped-call]
    return found


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, tuple | list) else [int(value)] * 2


class _ChannelsLast(torch.autograd.Function):
    """The forward pass with channels last; everything that goes in and out has them first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *how: Any) -> Tensor:
        """The largest of each window, and where it is."""
        last = x.contiguous(memory_format=torch.channels_last)
        largest, places = torch.ops.aten.max_pool2d_with_indices(last, *how)
        ctx.how = how
        ctx.save_for_backward(x, places.contiguous())
        return largest.contiguous()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """As torch does it."""
        x, places = ctx.saved_tensors
        return torch.ops.aten.max_pool2d_with_indices_backward(g, x, *ctx.how, places), *(None,) * len(ctx.how)
