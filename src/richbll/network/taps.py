"""Activations that enter earlier weight layers: a wider basis for the gradients, free in the forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from richbll.errors import ModelError
from richbll.network.batches import Batch, tensors_in


@dataclass(frozen=True)
class Tap:
    """A layer whose input is read: (n, …, width) for a linear one, (n, width, …) for a convolution."""

    name: str
    width: int
    channels_first: bool

    def pooled(self, given: Tensor | None, num_rows: int) -> Tensor:
        """The layer's input, averaged over positions."""  # (n, width)
        if given is None or given.ndim < 2 or given.shape[0] != num_rows or given.numel() % (num_rows * self.width):
            seen = "nothing" if given is None else f"shape {tuple(given.shape)}"
            raise ModelError(
                f"Layer '{self.name}' received {seen} for {num_rows} examples, unlike in the fit. A model that runs "
                'other layers for other inputs needs basis="last_layer".'
            )
        if self.channels_first:
            return given.reshape(num_rows, self.width, -1).mean(dim=2)
        return given.reshape(num_rows, -1, self.width).mean(dim=1)


@contextmanager
def recorded_inputs(layers: Sequence[nn.Module]) -> Iterator[list[list[Tensor]]]:
    """The inputs of some layers during the block; the hooks are removed afterwards, also after an error."""
    inputs: list[list[Tensor]] = [[] for _ in layers]
    thread = get_ident()

    def recorder(found: list[Tensor]) -> Any:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
            # Another thread may be running the same model. Where it meets this hook while it is being removed, torch
            # has forgotten that it takes the names.
            if get_ident() == thread:
                found.append(args[0] if args else (kwargs or {})["input"])

        return record

    handles = [
        layer.register_forward_pre_hook(recorder(found), with_kwargs=True)
        for layer, found in zip(layers, inputs, strict=True)
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def find_taps(model: nn.Module, batch: Batch, last_layer: str) -> tuple[Tap, ...]:
    """The linear and convolutional layers before the last that are run once on the whole batch, each input once.

    Where a mask comes with the inputs, linear layers that act at several positions are left out: an average over padded
    positions would make an example's uncertainty depend on the length of its batch.
    """
    masked = any("mask" in name for name in batch.kwargs) or any(
        tensor.dtype == torch.bool for tensor in tensors_in((batch.args, batch.kwargs))
    )
    part = batch.rows(slice(0, batch.size - 1)) if batch.size > 2 else batch
    last = model.get_submodule(last_layer)
    named = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | _ConvNd) and layer is not last
    ]
    layers = [layer for _, layer in named]
    with recorded_inputs(layers) as inputs, torch.no_grad():
        model(*batch.args, **batch.kwargs)
    with recorded_inputs(layers) as fewer, torch.no_grad():
        model(*part.args, **part.kwargs)
    taps, seen = [], set()
    for (name, layer), given, less in zip(named, inputs, fewer, strict=True):
        follows = len(given) == len(less) == 1 and (len(given[0]), len(less[0])) == (batch.size, part.size)
        if not follows or given[0].ndim < 2 or id(given[0]) in seen:
            continue
        if masked and given[0].ndim > 2 and isinstance(layer, nn.Linear):
            continue
        seen.add(id(given[0]))  # query, key and value share theirs
        is_convolution = isinstance(layer, _ConvNd)
        taps.append(Tap(name, given[0].shape[1 if is_convolution else -1], is_convolution))
    return tuple(taps)
