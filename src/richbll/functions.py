"""Whole functions drawn from the posterior."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from richbll.checks import finite_rows
from richbll.core.posterior import function_offsets
from richbll.fitted import Fitted, head_for
from richbll.precision import no_autocast

_MOST_ELEMENTS = 2**24  # of ε in the precision of Z: 64 MiB in float32


class FunctionSamples:
    """Functions drawn from a posterior, made by `RichBLL.sample_functions`.

    Later changes of the estimator do not move them.

    Examples:
        >>> from richbll import RichBLL
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> functions = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2)).sample_functions(5, seed=0)
        >>> x = torch.zeros(3, 2)
        >>> functions(x).shape, torch.equal(functions(x), functions(x))
        (torch.Size([5, 3, 1]), True)
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
        some = max(1, _MOST_ELEMENTS // self._eps[0].numel())  # draws at a time
        with no_autocast(Z.device):
            offsets = torch.cat([function_offsets(Z, eps.to(Z)) for eps in torch.split(self._eps, some)])
        draws = head.mean(Z, f) + offsets
        finite_rows("prediction", "x", draws.transpose(0, 1))
        return draws
