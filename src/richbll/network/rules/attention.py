"""`nn.MultiheadAttention`: its projections are linear layers inside one function, taken apart here."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from richbll.network.rules.linear import by_bias, by_weight
from richbll.network.rules.rule import Rule, Tracer, Unruled

_NAMES = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
    "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask", "need_weights",
    "attn_mask", "use_separate_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v",
    "average_attn_weights", "is_causal",
)  # fmt: skip
_RARE = ("bias_k", "bias_v", "static_k", "static_v", "add_zero_attn", "training")


def attention(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """softmax(q kᵀ / √d) v with q, k, v and the output from linear maps; sequences come first, then the batch."""
    given: dict[str, Any] = (
        dict.fromkeys(_NAMES)
        | {"training": True, "need_weights": True}
        | dict(zip(_NAMES, args, strict=False))
        | kwargs
    )
    query, heads = given["query"], given["num_heads"]
    if query.ndim != 3 or any(given[name] is not None and given[name] is not False for name in _RARE):
        raise Unruled
    q, k, v = _projected(tracer, given)
    L, n, S = q.shape[0], q.shape[1], k.shape[0]
    q, k, v = (
        part.reshape(*part.shape[:2], heads, -1).permute(1, 2, 0, 3) for part in (q, k, v)
    )  # (n, heads, length, d)
    mask = _mask(given, q, S)
    weights = None
    if given["need_weights"]:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        mixed = weights @ v
        weights = weights.mean(dim=1) if given["average_attn_weights"] is not False else weights
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    mixed = mixed.permute(2, 0, 1, 3).reshape(L, n, -1)
    weight, bias = given["out_proj_weight"], given["out_proj_bias"]
    z = functional.linear(mixed, tracer.leaf(weight), tracer.leaf(bias))
    return tracer.uses(z, (weight, by_weight(mixed.detach()), 0), (bias, by_bias, 0)), weights


def _projected(tracer: Tracer, given: dict[str, Any]) -> tuple[Tensor, ...]:
    """q, k and v; one product for those that have the same input."""
    query, key, value = given["query"], given["key"], given["value"]
    bias = given["in_proj_bias"]
    d = query.shape[-1]
    if given["use_separate_proj_weight"]:
        parts = [
            (x, given[f"{name}_proj_weight"], 0, i)
            for i, (name, x) in enumerate(zip("qkv", (query, key, value), strict=True))
        ]
        return tuple(
            _project(tracer, x, weight, slice(None), start, bias, slice(i * d, (i + 1) * d))
            for x, weight, start, i in parts
        )
    weight = given["in_proj_weight"]
    if query is key and key is value:
        whole = slice(None)
        return _project(tracer, query, weight, whole, 0, bias, whole).chunk(3, dim=-1)
    q = _project(tracer, query, weight, slice(0, d), 0, bias, slice(0, d))
    if key is value:
        k, v = _project(tracer, key, weight, slice(d, 3 * d), d * d, bias, slice(d, 3 * d)).chunk(2, dim=-1)
        return q, k, v
    k = _project(tracer, key, weight, slice(d, 2 * d), d * d, bias, slice(d, 2 * d))
    v = _project(tracer, value, weight, slice(2 * d, 3 * d), 2 * d * d, bias, slice(2 * d, 3 * d))
    return q, k, v


def _project(
    tracer: Tracer, x: Tensor, weight: Tensor, rows: slice, start: int, bias: Tensor | None, shifts: slice
) -> Tensor:
    W, b = tracer.leaf(weight)[rows], None if bias is None else tracer.leaf(bias)[shifts]
    z = functional.linear(x, W, b)
    return tracer.uses(z, (weight, by_weight(x.detach()), start), (bias, by_bias, shifts.start or 0))


def _mask(given: dict[str, Any], q: Tensor, S: int) -> Tensor | None:
    """What is added to the scores: 0, or −∞ where a mask says so."""  # (n or 1, heads or 1, L, S)
    n, heads, L = q.shape[:3]
    total = None
    if given["attn_mask"] is not None:
        mask = _additive(given["attn_mask"], q)
        total = mask.view(n, heads, L, S) if mask.ndim == 3 else mask.view(1, 1, L, S)
    if given["key_padding_mask"] is not None:
        mask = _additive(given["key_padding_mask"], q).view(n, 1, 1, S)
        total = mask if total is None else total + mask
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)
    return mask.to(like.dtype)


RULES: dict[object, Rule] = {functional.multi_head_attention_forward: attention}
