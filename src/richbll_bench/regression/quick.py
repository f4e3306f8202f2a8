"""A function that is called many thousands of times: compiled after a while, where the machine can.

torch.compile fuses a step of many small networks into a few loops, which makes it several times faster; it needs a
C++ compiler, and as long as some thousand steps. So short runs, and machines without a compiler, never see it.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch

_WORTH_COMPILING = 3000  # calls


class Quick:
    """As the function, and compiled from some number of calls on. Sizes of dimensions may change from call to call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._call, self._left = function, function, _WORTH_COMPILING

    def __call__(self, *args: Any) -> Any:
        """What the function gives."""
        self._left -= 1
        if self._left == 0:
            return self._compiled(*args)
        return self._call(*args)

    def _compiled(self, *args: Any) -> Any:
        try:
            torch.compiler.reset()  # numbers that changed since another training would be taken for variables
            compiled = torch.compile(self._function)
            result = compiled(*args)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            warnings.warn(f"torch.compile does not work here, so training goes on without it: {reason}", stacklevel=3)
            return self._function(*args)
        self._call = compiled
        return result
