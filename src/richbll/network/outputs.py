"""What a model returns, as a matrix: one row per example, one column per output."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from richbll.errors import ModelError
from richbll.precision import in_float64


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


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The floating-point dtype of the largest rounding among some."""
    return max((d for d in dtypes if d.is_floating_point), key=lambda d: torch.finfo(d).eps, default=torch.float64)


def rounding(dtype: torch.dtype, device: torch.device) -> float:
    """The dtype's ε; for float32 on a GPU that may multiply in TF32, which has ten bits, that of float16."""
    short = dtype == torch.float32 and device.type == "cuda" and _multiplies_in_tf32()
    return torch.finfo(torch.float16 if short else dtype).eps


def _multiplies_in_tf32() -> bool:
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # said by torch's newer settings, which the older question does not understand
        return getattr(torch.backends.cuda.matmul, "fp32_precision", "ieee") == "tf32"


def same_up_to_rounding(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Equal within the square root of the dtype's precision, relative to the larger of both."""
    eps = rounding(dtype, a.device)
    a, b = in_float64(a.detach()), in_float64(b.detach())
    return _largest(a - b) <= eps**0.5 * max(_largest(a), _largest(b))


def same_outputs(
    a: Tensor, b: Tensor, precision: torch.dtype, among: Tensor | None = None, terms: Tensor | None = None
) -> bool:
    """Outputs (n, c) of one model that differ by rounding only.

    Relative to how much outputs vary over the examples of a batch, `among` or b itself, so that a large constant in the
    output hides nothing, plus the rounding of that constant. One example alone shows no variation. An output near zero
    may be a sum of large `terms` (n, c), in absolute values, and has their rounding.
    """
    eps = rounding(coarsest(a.dtype, b.dtype, precision), a.device)
    a, b = in_float64(a.detach()), in_float64(b.detach())
    all_of = b if among is None else in_float64(among.detach())
    scale = _largest(all_of)
    spread = _largest(all_of - all_of.mean(dim=0)) if len(all_of) > 1 else scale
    of_terms = 8 * eps * _largest(terms) if terms is not None else 0.0
    return _largest(a - b) <= max(min(eps**0.5 * scale, eps**0.5 * spread + 256 * eps * scale), of_terms)


def _largest(values: Tensor) -> float:
    return values.abs().max().item() if values.numel() else 0.0
