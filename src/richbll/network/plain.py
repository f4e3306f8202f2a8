"""Models of which nothing has to be found out: sequences of torch's own layers that treat every example by itself.

What such a model does follows from the types of its layers: the batch is the first dimension throughout, no example
sees another one, and every parameter is used once, by a function that has a rule. Whatever could make it otherwise (a
subclass, a hook, a layer or a weight that occurs twice, batch statistics) makes it a model like any other, which is
tried first and looked at while it is read.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from richbll.network.batches import Batch

_ANYWHERE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Identity, nn.Dropout,
)  # fmt: skip
_SPATIAL = {
    1: (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d),
    3: (nn.Conv3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d, nn.Dropout3d),
}
_DIMENSIONS: dict[type[nn.Module], set[int]] = {kind: {dims + 2} for dims, kinds in _SPATIAL.items() for kind in kinds}
_NORMS: dict[type[nn.Module], set[int]] = {nn.BatchNorm1d: {2, 3}, nn.BatchNorm2d: {4}, nn.BatchNorm3d: {5}}


def is_plain(model: nn.Module, batch: Batch) -> bool:
    """Whether the model is such a sequence, in eval mode, and the batch one tensor with the examples first."""
    x = batch.args[0] if len(batch.args) == 1 and not batch.kwargs and batch.per_example == (True,) else None
    if type(model) is not nn.Sequential or type(x) is not Tensor or torch.is_autocast_enabled(x.device.type):
        return False
    leaves = list(leaves_of(model))
    if not _ends_with_two(leaves, x.ndim) or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return False
    parts = [*map(id, leaves), *(id(p) for leaf in leaves for p in leaf._parameters.values() if p is not None)]
    return len(set(parts)) == len(parts) and not any(map(_is_changed, model.modules()))


def ends_with(model: nn.Module, name: str) -> bool:
    """Whether a plain model's output is that of this linear layer, with nothing behind it."""
    last = list(leaves_of(model))[-1]
    return type(last) is nn.Linear and last is model.get_submodule(name)


def leaves_of(model: nn.Module) -> Iterator[nn.Module]:
    """In the order in which they run."""
    if type(model) is nn.Sequential:
        for part in model:
            yield from leaves_of(part)
    else:
        yield model


def _is_changed(module: nn.Module) -> bool:
    """By a hook, by a `forward` of its own, by compilation, or by what its type does not have."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    added = module._parameters if type(module) is nn.Sequential else module._modules
    return (
        any(hooks)
        or bool(added)
        or "forward" in vars(module)
        or module._compiled_call_impl is not None
        or module.training
    )


def _ends_with_two(leaves: list[nn.Module], ndim: int) -> bool:
    """Whether all are known, each gets as many dimensions as it takes, and two are left at the end."""
    for leaf in leaves:
        kind = type(leaf)
        if kind in _ANYWHERE or (kind is nn.Linear and ndim >= 2):
            continue
        if isinstance(leaf, nn.Flatten) and kind is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1):
            ndim = 2 if ndim >= 2 else 0
        elif kind in _NORMS and getattr(leaf, "running_mean", None) is not None:
            if ndim not in _NORMS[kind]:
                return False
        elif ndim not in _DIMENSIONS.get(kind, ()):
            return False
    return ndim == 2
