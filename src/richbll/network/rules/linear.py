"""z = W x + b, and a matrix product with a parameter on the right: sums of outer products over positions."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from richbll.network.rules.rule import Examples, Make, Rule, Tracer, Unruled, positions, summed_to
from richbll.network.structure import Gradient, Outer


def by_weight(x: Tensor) -> Make:
    """∂f/∂W = Σ_t g_t x_tᵀ."""
    return lambda g, examples: Outer(positions(g), examples.vectors(x))


def by_matrix(x: Tensor) -> Make:
    """∂f/∂P = Σ_t x_t g_tᵀ for z = x P."""
    return lambda g, examples: Outer(examples.vectors(x), positions(g))


def by_bias(g: Tensor, examples: Examples) -> Gradient:
    """∂f/∂b = Σ_t g_t; at one position an outer product with 1, which shares g with the weight's."""
    g = positions(g)
    return Outer(g, g.new_ones(1, g.shape[1], 1, 1)) if g.shape[2] == 1 else summed_to(g, (1, g.shape[-1]))


def linear(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`functional.linear(x, W, b)`."""
    x, weight, bias = _bound(args, kwargs, "input", "weight", "bias")
    if weight.ndim != 2:
        raise Unruled
    z = func(x, tracer.leaf(weight), tracer.leaf(bias))
    return tracer.uses(z, (weight, by_weight(x.detach()), 0), (bias, by_bias, 0))


def matmul(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`x @ P`."""
    if len(args) != 2 or kwargs or not isinstance(args[0], Tensor) or args[1].ndim != 2 or args[0].ndim < 2:
        raise Unruled
    x, matrix = args
    if x is matrix:
        raise Unruled
    z = func(x, tracer.leaf(matrix))
    return tracer.uses(z, (matrix, by_matrix(x.detach()), 0))


def addmm(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`b + x P`, as some language models write a linear layer."""
    if len(args) != 3 or kwargs or args[0].ndim != 1:
        raise Unruled
    bias, x, matrix = args
    z = func(tracer.leaf(bias), x, tracer.leaf(matrix))
    return tracer.uses(z, (matrix, by_matrix(x.detach()), 0), (bias, by_bias, 0))


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> list[Any]:
    """Arguments by position or by name."""
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]


RULES: dict[object, Rule] = {
    functional.linear: linear,
    torch.matmul: matmul,
    torch.mm: matmul,
    Tensor.matmul: matmul,
    Tensor.mm: matmul,
    Tensor.__matmul__: matmul,
    torch.addmm: addmm,
    Tensor.addmm: addmm,
}
