"""The user's model is read, never written: evaluation mode in, everything as it was out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from richbll.errors import ModelError

# Flags and weights of a module are shared by all threads, so whoever changes them for a moment goes alone.
_ALONE = threading.RLock()


def bare(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile(module)` or `nn.DataParallel(module)`: hooks and names are its own."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"The model must be a torch.nn.Module, not {type(model).__name__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("A scripted or traced model cannot be differentiated by its parts: give the eager module.")
    inner = model._modules.get("_orig_mod")
    if inner is None and isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return model if inner is None else bare(inner)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode (dropout off, BatchNorm on running statistics); flags come back per module.

    One thread at a time. Compiled parts are run eagerly inside: compiled code does not call hooks that were added after
    it was compiled.
    """
    with _ALONE:
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
    """`evaluating` with autograd on, and whatever a forward pass leaves on the modules is taken away again.

    Attributes, containers and buffers are put back as they were, by identity; buffers that were changed in place, and
    embeddings that renormalise themselves, by value.
    """
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        attributes = [(module, dict(vars(module))) for module in model.modules()]
        containers = [
            (value, value.copy() if value else ())  # most are empty dictionaries of hooks
            for _, before in attributes
            for value in before.values()
            if isinstance(value, dict | list | set)
        ]
        renormalised = [m.weight for m in model.modules() if getattr(m, "max_norm", None) is not None]
        contents = [(t, t.detach().clone()) for t in (*model.buffers(), *renormalised) if isinstance(t, torch.Tensor)]
        try:
            yield
        finally:
            for module, before in attributes:
                now = vars(module)
                for name in now.keys() - before.keys():
                    del now[name]
                now.update(before)
            for value, content in containers:
                if value or content:
                    _restore(value, content)
            with torch.no_grad():
                for tensor, values in contents:
                    if tensor.layout != torch.strided or not torch.equal(tensor, values):
                        tensor.copy_(values)


def _restore(value: Any, before: Any) -> None:
    if isinstance(value, list):
        value[:] = before
    else:
        value.clear()
        value.update(before)
