"""The model and its uncertainty as one `nn.Module`, for torch.compile, torch.export and serving."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from richbll.errors import ModelError
from richbll.fitted import Fitted, UncertaintyHead
from richbll.network.outputs import read_output
from richbll.network.taps import recorded_inputs

_INPUT = "_richbll_input"


def _keep_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A hook that compilers can follow: it leaves the input on the layer."""
    if torch.compiler.is_compiling():
        setattr(layer, _INPUT, args[0] if args else kwargs["input"])


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy in which tensors that came out of a forward pass, and cannot be copied as they are, are detached."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in (*vars(module).values(), *module._buffers.values()):
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


class UncertainModule(nn.Module):
    """x → (mean, epistemic variance), both (n, c). A copy: the user's model stays as it is.

    Examples:
        >>> from richbll import RichBLL
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> module = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2)).as_module()
        >>> mean, epistemic_variance = module(torch.zeros(3, 2))
        >>> torch.equal(mean, model(torch.zeros(3, 2))), epistemic_variance.shape
        (True, torch.Size([3, 1]))
    """

    @torch.inference_mode(False)
    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        super().__init__()
        self.model = _copied(model).eval().requires_grad_(False)
        self._last_layer = fitted.last_layer
        layer = self.model.get_submodule(fitted.last_layer.name)
        weight = layer.get_parameter("weight")
        self.head = UncertaintyHead(fitted, torch.promote_types(weight.dtype, torch.float32), weight.device)
        for tapped in fitted.last_layer.layers(self.model):
            tapped.register_forward_pre_hook(_keep_input, with_kwargs=True)

    def forward(self, x: Any = None, /, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
        """Mean and epistemic variance, for the inputs that the model takes, by position or by name."""
        args = () if x is None and not more else (x, *more)
        layers = self._last_layer.layers(self.model)
        if torch.compiler.is_compiling():
            raw = self.model(*args, **named)
            inputs = [[getattr(layer, _INPUT)] for layer in layers]
            for layer in layers:
                setattr(layer, _INPUT, None)
        else:
            with recorded_inputs(layers) as inputs:
                raw = self.model(*args, **named)
            if not inputs[0]:
                raise ModelError(f"The last layer '{self._last_layer.name}' was not reached: is a part of it compiled?")
        a = self._last_layer.input_rows(inputs, inputs[0][0].numel() // self._last_layer.num_inputs)
        mean, variance = self.head(a, read_output(raw, a.shape[0]))
        return mean, variance

    def train(self, mode: bool = True) -> "UncertainModule":
        """Always stays in eval mode: the posterior holds for the network without dropout."""
        return super().train(False)
