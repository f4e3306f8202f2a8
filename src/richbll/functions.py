"""Whole functions drawn from the posterior."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from richbll.checks import finite_rows
from richbll.core.posterior import function_offsets
from richbll.fitted import Fitted, head_for


class FunctionSamples:
    """Functions drawn from a posterior, made by `RichBLL.sample_functions`.

    Later changes of the estimator do not move them.
    """

    def __init__(self, forward: Callable[[Any], tuple[Tensor, Tensor]], fitted: Fitted, eps: Tensor) -> None:
        self._forward = forward
        self._fitted = fitted
        self._eps = eps  # (s, c, r)

    def __call__(self, x: Any) -> Tensor:
        """All draws at the inputs x."""  # (s, n, c)
        a, f = self._forward(x)
        head = head_for(self._fitted, a)
        Z = head.whitened(a)
        draws = head.mean(Z, f) + function_offsets(Z, self._eps.to(Z))
        finite_rows("prediction", "x", draws.transpose(0, 1))
        return draws
