"""The model and its uncertainty as one `nn.Module`, for torch.compile, torch.export and serving."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from richbll.fitted import Fitted, UncertaintyHead
from richbll.network.outputs import read_output

_INPUT = "_richbll_input"


def _keep_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    setattr(layer, _INPUT, args[0] if args else kwargs["input"])


class UncertainModule(nn.Module):
    """x → (mean, epistemic variance), both (n, c). A copy: the user's model stays as it is."""

    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._last_layer = fitted.last_layer
        layer = self.model.get_submodule(fitted.last_layer.name)
        weight = layer.get_parameter("weight")
        self.head = UncertaintyHead(fitted, torch.promote_types(weight.dtype, torch.float32), weight.device)
        layer.register_forward_pre_hook(_keep_input, with_kwargs=True)

    def forward(self, x: Any = None, /, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Mean and epistemic variance, for the inputs that the model takes, by position or by name."""
        raw = self.model(**named) if x is None and not more else self.model(x, *more, **named)
        layer = self.model.get_submodule(self._last_layer.name)
        kept: Tensor = getattr(layer, _INPUT)
        setattr(layer, _INPUT, None)
        a = kept.reshape(-1, self._last_layer.num_inputs)
        mean, variance = self.head(a, read_output(raw, a.shape[0]))
        return mean, variance

    def train(self, mode: bool = True) -> "UncertainModule":
        """Always stays in eval mode: the posterior holds for the network without dropout."""
        return super().train(False)
