"""A table of rows, looked up by index."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from richbll.network.rows import Rows
from richbll.network.rules.rule import Examples, Rule, Tracer, Unruled, positions
from richbll.network.structure import Gradient

_NAMES = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def embedding(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Each row receives the gradients of the places where it was looked up; the padding row none."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    indices, weight = given["input"], given["weight"]
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        raise Unruled
    padding = given.get("padding_idx")
    num_rows = weight.shape[0]

    def by_table(g: Tensor, examples: Examples) -> Gradient:
        places = examples.first(indices)
        places = places.reshape(len(places), -1)
        if padding is not None:
            places = places.masked_fill(places == padding % num_rows, -1)
        return Rows(places, positions(g), num_rows)

    z = func(**(given | {"weight": tracer.leaf(weight), "sparse": False}))
    return tracer.uses(z, (weight, by_table, 0))


RULES: dict[object, Rule] = {functional.embedding: embedding}
