"""A view of a parameter that has one row for all examples: positions cut to a length, pos[:, :T], or pos[None]."""

from typing import Any

from torch import Tensor
from torch.func import vjp, vmap

from richbll.network.rules.rule import ROW, Examples, Rule, Tracer, Unruled
from richbll.network.structure import Dense, Gradient


def viewed(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Every element goes back to where it was taken from."""
    parameter, *how = args
    if any(isinstance(part, Tensor | list) for part in _parts(how)):
        raise Unruled  # a table, looked up by an index
    z = func(tracer.leaf(parameter), *how, **kwargs)
    if z.ndim == 0 or z.shape[0] != 1:
        raise Unruled  # perhaps some rows of a matrix, which a batch dimension would turn into others

    def by_parameter(g: Tensor, examples: Examples) -> Gradient:
        if examples.layout != ROW:
            raise Unruled
        pulled = vjp(lambda p: func(p, *how, **kwargs), parameter.detach())[1]
        (back,) = vmap(pulled)(g.flatten(0, 1))
        return Dense(back.reshape(*g.shape[:2], -1))

    return tracer.uses(z, (parameter, by_parameter, 0))


def _parts(how: list[Any]) -> list[Any]:
    """Arguments, and those of an index."""
    return [part for value in how for part in (value if isinstance(value, tuple) else (value,))]


RULES: dict[object, Rule] = dict.fromkeys((Tensor.__getitem__, Tensor.unsqueeze, Tensor.view, Tensor.reshape), viewed)
