"""Checks at the door: each returns the cleaned value or raises a typed error with the numbers."""

import math
import re
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from richbll.errors import NonFiniteError, OptionError, ShapeError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def number_of_bytes(value: Any) -> int:
    """A memory budget: a number of bytes, or text such as "2GiB" or "512 MB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|[KMGT]I?B)\s*", value.upper())
        if match is None:
            raise OptionError(f'memory_budget={value!r}: write a number and a unit, such as "2GiB" or "512MB".')
        value = int(float(match[1]) * _UNITS[match[2]])
    if isinstance(value, bool) or not isinstance(value, Real) or not 1 <= float(value) < math.inf:
        raise OptionError(f"memory_budget={value!r}: must be a positive number of bytes.")
    return int(float(value))


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """A whole number, of Python or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        kind = "a whole number" if least is None else f"a whole number, {least} or more"
        raise OptionError(f"{name}={value!r}: must be {kind}.")
    return int(value)


def true_or_false(name: str, value: object) -> bool:
    """True or False, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: must be True or False.")
    return value


def human_bytes(count: float) -> str:
    """A size for people, e.g. "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def one_of(name: str, value: object, allowed: Sequence[str]) -> str:
    """An option that is one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(f"{name}={value!r}: must be one of {', '.join(map(repr, allowed))}.")
    return value


def positive_per_output(name: str, value: object, num_outputs: int) -> Tensor:
    """A positive number, or one per output, as a float64 tensor of shape (c,)."""
    if isinstance(value, bool):
        raise OptionError(f"{name}={value!r}: must be a positive number, or one per output.")
    if isinstance(value, float) and 0 < value < math.inf:
        return torch.full((num_outputs,), value, dtype=torch.float64)
    try:
        given = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"{name}={value!r}: must be a positive number, or one per output.") from error
    if given.ndim > 1 or (given.ndim == 1 and given.numel() not in (1, num_outputs)):
        raise ShapeError(
            f"{name} has shape {tuple(given.shape)}, but there {_posteriors(num_outputs)}: give one number"
            f"{f', or {num_outputs}' if num_outputs > 1 else ''}."
        )
    if not bool(torch.isfinite(given).all()) or bool((given <= 0).any()):
        raise OptionError(f"{name}={value!r}: must be positive and finite.")
    return given.expand(num_outputs).clone()


def _posteriors(count: int) -> str:
    return "is 1 posterior, of one output or shared by all" if count == 1 else f"are {count} posteriors, one per output"


def non_negative(name: str, value: object) -> float:
    """A finite number that is not below zero."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionError(f"{name}={value!r}: must be a number that is not negative.")
    if not math.isfinite(value) or value < 0:
        raise OptionError(f"{name}={value!r}: must be finite and not negative.")
    return float(value)


def finite_rows(what: str, where: str, values: Tensor) -> None:
    """Every row of `values` (n, …) is finite; the error names the rows."""
    values = values.detach()
    if bool(torch.isfinite(values.sum())):  # NaN and Inf survive every sum, so a finite one is proof
        return
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return
    bad = (~finite.flatten(1).all(dim=1)).nonzero().flatten().tolist()
    shown = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
    raise NonFiniteError(
        f"NaN or Inf in the {what} of {where}: {len(bad)} of {len(finite)} rows (row {shown}). "
        "Nothing was changed. Look at these inputs and at the model's weights."
    )
