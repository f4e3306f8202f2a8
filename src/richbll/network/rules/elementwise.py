"""A parameter that is added, subtracted or multiplied: positions, shifts, scales, class tokens."""

from typing import Any

import torch
from torch import Tensor

from richbll.network.rules.rule import Examples, Make, Rule, Tracer, Unruled, summed_to
from richbll.network.structure import Gradient


def added(sign: float) -> Rule:
    """z = u + p or p + u; z = u − p with sign −1 for the second."""

    def rule(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if len(args) != 2 or kwargs:
            raise Unruled
        first, second = args
        z = func(tracer.leaf(first), tracer.leaf(second))
        shape = tuple(z.shape)
        return tracer.uses(z, (first, _by(1.0, first, shape), 0), (second, _by(sign, second, shape), 0))

    return rule


def multiplied(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """z = u p."""
    if len(args) != 2 or kwargs:
        raise Unruled
    first, second = args
    z = func(tracer.leaf(first), tracer.leaf(second))
    shape = tuple(z.shape)
    return tracer.uses(z, (first, _by(second, first, shape), 0), (second, _by(first, second, shape), 0))


def expanded(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """p, repeated over the batch."""
    parameter = args[0]
    z = func(tracer.leaf(parameter), *args[1:], **kwargs)
    return tracer.uses(z, (parameter, _by(1.0, parameter, tuple(z.shape)), 0))


def _by(factor: Any, parameter: Any, z_shape: tuple[int, ...]) -> Make:
    """Σ g · factor over everything that the parameter was broadcast along."""
    shape = tuple(parameter.shape) if isinstance(parameter, Tensor) else ()

    def by_parameter(g: Tensor, examples: Examples) -> Gradient:
        return summed_to(_scaled(g, factor, z_shape, examples), examples.without(shape, len(z_shape)))

    return by_parameter


def _scaled(g: Tensor, factor: Any, z_shape: tuple[int, ...], examples: Examples) -> Tensor:
    if not isinstance(factor, Tensor):
        return g if factor == 1 else g * factor
    return g * examples.first(factor.detach().expand(z_shape)).unsqueeze(0)


_ADDITION: dict[object, Rule] = dict.fromkeys((torch.add, Tensor.add, Tensor.__radd__), added(1.0))
_SUBTRACTION: dict[object, Rule] = dict.fromkeys((torch.sub, Tensor.sub), added(-1.0))
_PRODUCT: dict[object, Rule] = dict.fromkeys((torch.mul, Tensor.mul, Tensor.__rmul__), multiplied)
RULES: dict[object, Rule] = {
    **_ADDITION,
    **_SUBTRACTION,
    **_PRODUCT,
    Tensor.expand: expanded,
    Tensor.expand_as: expanded,
}
