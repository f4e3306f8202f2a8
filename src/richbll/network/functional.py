"""Calling a model with other tensors in place of its parameters."""

from collections import defaultdict
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def call_with(model: nn.Module, parameters: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`functional_call`, also for a weight of two modules and for a module under two names.

    torch's own handling of tied weights replaces a module that is registered twice twice, and then puts back the wrong
    tensor; so every place that holds a parameter is named here exactly once.
    """
    return functional_call(model, _everywhere(model, parameters), args, kwargs, tie_weights=False)


def _everywhere(model: nn.Module, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    modules = dict(model.named_modules(remove_duplicate=False))
    places: dict[int, dict[tuple[int, str], str]] = defaultdict(dict)  # parameter → (module, attribute) → first name
    given: dict[int, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner, _, attribute = name.rpartition(".")
        places[id(parameter)].setdefault((id(modules[owner]), attribute), name)
        if name in parameters:
            given[id(parameter)] = parameters[name]
    return {name: tensor for key, tensor in given.items() for name in places[key].values()}
