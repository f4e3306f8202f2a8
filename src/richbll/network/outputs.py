"""What a model returns, as a matrix: one row per example, one column per output."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from richbll.errors import ModelError


def read_output(raw: Any, num_rows: int) -> Tensor:
    """The output tensor (n, c): a tensor, or the `logits` of a Hugging Face output or mapping."""
    output = raw["logits"] if isinstance(raw, Mapping) and "logits" in raw else getattr(raw, "logits", raw)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"The model returned {type(raw).__name__}, not a tensor or something with `.logits`. "
            "Wrap it in a module whose forward returns the one tensor whose uncertainty you want."
        )
    if output.ndim == 0 and num_rows == 1:
        output = output.reshape(1)
    if output.ndim == 0 or output.shape[0] != num_rows:
        raise ModelError(
            f"The model returned shape {tuple(output.shape)} for a batch of {num_rows} examples: "
            "the first dimension must be the batch, in the inputs and in the output."
        )
    if not output.is_floating_point():
        raise ModelError(f"The model returned {output.dtype}; richbll needs a real floating-point output.")
    return output.flatten(1) if output.ndim > 1 else output.unsqueeze(1)


def same_up_to_rounding(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Equal within the square root of the dtype's precision, relative to the larger of both."""
    a, b = a.detach().to(torch.float64), b.detach().to(torch.float64)
    scale = max(a.abs().max().item(), b.abs().max().item()) if a.numel() else 0.0
    difference = (a - b).abs().max().item() if a.numel() else 0.0
    return difference <= torch.finfo(dtype).eps ** 0.5 * scale
