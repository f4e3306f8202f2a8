"""z = γ x̂ + β with x̂ the input, normalised: over features (LayerNorm, RMSNorm), groups, or running statistics."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from richbll.network.rules.rule import Examples, Make, Rule, Tracer, Unruled, is_run_again, summed_to
from richbll.network.structure import Dense, Gradient

_NAMES: dict[object, tuple[str, ...]] = {
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    functional.rms_norm: ("input", "normalized_shape", "weight", "eps"),
    functional.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
    functional.instance_norm: (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "use_input_stats",
        "momentum",
        "eps",
    ),
    functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
}
_FUSED = (torch.float32, torch.float64)
backward = torch.ops.aten.native_batch_norm_backward


def normalised(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """∂f/∂γ = Σ g x̂ and ∂f/∂β = Σ g, over positions."""
    given = dict(zip(_NAMES[func], args, strict=False)) | kwargs
    if func is functional.batch_norm and given.get("training", False):
        raise Unruled  # statistics of the batch: examples are not independent
    x, weight, bias = given["input"], given.get("weight"), given.get("bias")
    leaves = {name: tracer.leaf(given[name]) for name in ("weight", "bias") if given.get(name) is not None}
    by_known = func is functional.batch_norm and _is_by_known_statistics(given | leaves)
    z = _by_known_statistics(given | leaves) if by_known else func(**(given | leaves))
    bare = {name: value for name, value in given.items() if name not in ("weight", "bias")}
    shape = _broadcast(func, given, z)

    def hat(examples: Examples) -> Tensor:
        return examples.first(func(**(bare | {"input": x.detach()}))).unsqueeze(0)

    by_weight = _times(hat, shape, z.ndim)
    if by_known:
        by_weight = _by_statistics(given, by_weight)
    return tracer.uses(z, (weight, by_weight, 0), (bias, _times(None, shape, z.ndim), 0))


def _times(hat: Callable[[Examples], Tensor] | None, shape: tuple[int, ...], num_dims: int) -> Any:
    def by_parameter(g: Tensor, examples: Examples) -> Gradient:
        return summed_to(g if hat is None else g * hat(examples), examples.without(shape, num_dims))

    return by_parameter


def _is_by_known_statistics(given: dict[str, Any]) -> bool:
    """Running ones, and everything in one precision that kernels take as it is; no part is itself made from weights."""
    fixed = [given.get(name) for name in ("running_mean", "running_var", "weight", "bias")]
    dtype = given["input"].dtype
    if dtype not in _FUSED or is_run_again():
        return False
    return all(t is not None and t.dtype == dtype and t.is_leaf for t in fixed)


def _by_known_statistics(given: dict[str, Any]) -> Tensor:
    z: Tensor = _KnownStatistics.apply(given["input"], given["weight"], given["bias"], given)  # type: ignore[no-untyped-call]
    return z


class _KnownStatistics(torch.autograd.Function):
    """Batch normalisation by running statistics: ∂f/∂x = g γ / √(v + ε), and nothing else is asked of it.

    torch's own backward pass sums over positions what the gradients by γ and β need, whether they are wanted or not.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, given: dict[str, Any]) -> Tensor:
        """As torch does it."""
        scale = weight * torch.rsqrt(given["running_var"] + given.get("eps", 1e-5))
        ctx.save_for_backward(scale.view(-1, *(1,) * (x.ndim - 2)))
        return functional.batch_norm(**(given | {"input": x, "weight": weight, "bias": bias}))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """By x alone; gradients by γ and β are made from that by z."""
        return g * ctx.saved_tensors[0], None, None, None


def _by_statistics(given: dict[str, Any], otherwise: Make) -> Make:
    """Σ g x̂ by torch's own kernel, which never forms x̂: for it the channels of all examples are channels."""
    x, mean, var, eps = given["input"].detach(), given["running_mean"], given["running_var"], given.get("eps", 1e-5)

    def by_weight(g: Tensor, examples: Examples) -> Gradient:
        if examples.layout != 0 or g.dtype != x.dtype:
            return otherwise(g, examples)
        n, channels = x.shape[:2]
        flat = x.reshape(1, n * channels, -1)
        each = (mean.repeat(n), var.repeat(n), None, None, False, eps, [False, True, False])
        found = [backward(one.reshape(flat.shape), flat, None, *each)[1] for one in g]
        return Dense(torch.stack(found).view(len(g), n, channels))

    return by_weight


def _broadcast(func: object, given: dict[str, Any], z: Tensor) -> tuple[int, ...]:
    """The parameters' shape, as they are broadcast over z."""
    if func in (functional.layer_norm, functional.rms_norm):
        return tuple(given["normalized_shape"])
    return (z.shape[1],) + (1,) * (z.ndim - 2)


RULES: dict[object, Rule] = dict.fromkeys(_NAMES, normalised)
