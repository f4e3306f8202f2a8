"""The user's model is read, never written: evaluation mode in, everything as it was out."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


def uncompiled(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile(module)`; hooks, names and gradients are those of the original."""
    inner = model._modules.get("_orig_mod")
    return model if inner is None else inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode (dropout off, BatchNorm on running statistics); flags come back per module.

    Compiled parts are run eagerly inside: compiled code does not call hooks that were added after it was compiled.
    """
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    compiled = any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in modules)
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """`evaluating`, and buffers and tensors that a forward pass leaves on its modules are put back too."""
    attributes = [
        (module, {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)})
        for module in model.modules()
    ]
    buffers = [(buffer, buffer._version, buffer.detach().clone()) for buffer in model.buffers()]
    with evaluating(model):
        try:
            yield
        finally:
            for module, before in attributes:
                left = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
                for name in left:
                    if name not in before:
                        delattr(module, name)
                for name, value in before.items():
                    if vars(module).get(name) is not value:
                        setattr(module, name, value)
            with torch.no_grad():
                for buffer, version, content in buffers:
                    if buffer._version != version:
                        buffer.copy_(content)
