"""Convolutions in one to three dimensions, with groups, stride and dilation, and transposed ones."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from richbll.network.rules.rule import FLAT, Examples, Make, Rule, Tracer, Unruled, summed_to
from richbll.network.structure import Gradient, Windows, padded

_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def convolution(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """∂f/∂W: the gradient by the output, correlated with windows of the input."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    dims = weight.ndim - 2
    if x.ndim != dims + 2:
        raise Unruled  # a single example without a batch
    kernel = tuple(weight.shape[2:])
    stride, dilation = _each(given.get("stride", 1), dims), _each(given.get("dilation", 1), dims)
    sides = _sides(given.get("padding", 0), kernel, dilation)
    groups = given.get("groups", 1)

    def by_weight(g: Tensor, examples: Examples) -> Gradient:
        even = all(before == after for before, after in sides)
        around = examples.first(x.detach() if even else padded(x.detach(), sides)).unsqueeze(0)
        padding = tuple(side for side, _ in sides) if even else ()
        return _over_images(Windows(around, g, kernel, stride, dilation, groups, padding), examples)

    z = func(**(given | {"weight": tracer.leaf(weight), "bias": tracer.leaf(bias)}))
    return tracer.uses(z, (weight, by_weight, 0), (bias, _by_bias(z.shape[1], dims), 0))


def transposed(tracer: Tracer, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The transpose of a convolution: its input and the gradient by its output change places."""
    given = dict(zip(_TRANSPOSED, args, strict=False)) | kwargs
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    dims = weight.ndim - 2
    if x.ndim != dims + 2:
        raise Unruled
    kernel = tuple(weight.shape[2:])
    stride, dilation = _each(given.get("stride", 1), dims), _each(given.get("dilation", 1), dims)
    sides = [(side, side) for side in _each(given.get("padding", 0), dims)]
    groups = given.get("groups", 1)

    def by_weight(g: Tensor, examples: Examples) -> Gradient:
        inputs = examples.first(x.detach()).unsqueeze(0)
        return _over_images(Windows(padded(g, sides), inputs, kernel, stride, dilation, groups), examples)

    z = func(**(given | {"weight": tracer.leaf(weight), "bias": tracer.leaf(bias)}))
    return tracer.uses(z, (weight, by_weight, 0), (bias, _by_bias(z.shape[1], dims), 0))


def _over_images(windows: Windows, examples: Examples) -> Gradient:
    """Where an example has several images (n · T of them in all), they are one more dimension, with windows of 1."""
    if examples.layout == 0:
        return windows
    if examples.layout != FLAT or len(windows.kernel) == 3:
        raise Unruled
    x, g = windows.x.transpose(2, 3), windows.g.transpose(2, 3)  # (c, n, T, d, …) to (c, n, d, T, …)
    kernel, stride, dilation = ((1, *each) for each in (windows.kernel, windows.stride, windows.dilation))
    return Windows(x, g, kernel, stride, dilation, windows.groups, windows.padding and (0, *windows.padding))


def _by_bias(channels: int, dims: int) -> Make:
    shape = (channels,) + (1,) * dims
    return lambda g, examples: summed_to(g, examples.without(shape, dims + 2))


def _each(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def _sides(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """Zeros before and after: "same" puts the odd one after."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(side, side) for side in _each(padding, len(kernel))]


RULES: dict[object, Rule] = {
    torch.conv1d: convolution,
    torch.conv2d: convolution,
    torch.conv3d: convolution,
    torch.conv_transpose1d: transposed,
    torch.conv_transpose2d: transposed,
    torch.conv_transpose3d: transposed,
}
