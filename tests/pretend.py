"""A device that this machine need not have: CPU tensors that say they are elsewhere, and refuse to meet others.

What a GPU would refuse is refused: an operation on tensors of both devices (numbers excepted), `.numpy()`, a CPU
generator that draws on the device; and on "mps" every float64 tensor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._tensor import _convert
from torch.overrides import TorchFunctionMode

_MOVES = {Tensor.to, Tensor.cpu, Tensor.type}
_COPIES = {Tensor.copy_, Tensor.__setitem__}  # from anywhere to anywhere
_MAY_MEET = {*_COPIES, Tensor.__getitem__}  # an index may be on the CPU
_PLAIN = {Tensor.as_subclass, Tensor.__repr__, Tensor.tolist, Tensor.item}


class Pretend(Tensor):
    """On another device, as far as anyone can tell."""

    there = torch.device("cuda", 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pretend":
        if id(self) not in memo:
            copied = self.detach().clone()
            memo[id(self)] = nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied
        return memo[id(self)]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:
            return Pretend.there
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError("can't convert a device tensor to numpy: use .cpu() first")
        if func in _MOVES:
            return _moved(func, *args, **kwargs)
        given = [one for one in _leaves((args, kwargs)) if isinstance(one, Tensor)]
        strangers = [one for one in given if not isinstance(one, Pretend) and one.ndim > 0]
        if func in _COPIES and not isinstance(args[0], Pretend):
            return _copied_from_there(func, args)
        if strangers and not (func in _MAY_MEET and isinstance(args[0], Pretend)):
            raise RuntimeError(f"{func.__name__}: tensors on {Pretend.there} and on {strangers[0].device}")
        _no_generator(func, kwargs)
        kwargs.pop("device", None)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        return result if func in _PLAIN else checked(_convert(result, Pretend))


def _copied_from_there(func: Any, args: tuple[Any, ...]) -> Any:
    """Values on the device into a tensor that is not; what they are put at must not be there."""
    *places, values = args
    if any(isinstance(one, Pretend) for one in _leaves(places)):
        raise RuntimeError(f"{func.__name__}: an index on {Pretend.there} for a tensor that is not")
    with torch._C.DisableTorchFunctionSubclass():
        return func(*places, values.as_subclass(Tensor))


class _Factories(TorchFunctionMode):
    """Tensors that are made on the device, or moved there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return _moved(func, *args, **kwargs)
        if _is_there(kwargs.get("device")):
            _no_generator(func, kwargs)
            del kwargs["device"]
            return checked(_convert(func(*args, **kwargs), Pretend))
        return func(*args, **kwargs)


def _moved(func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    device, others = kwargs.pop("device", None) or tensor.device, []
    for one in args:
        if isinstance(one, str | torch.device):
            device = one
        elif isinstance(one, Tensor):
            device = one.device
            others.append(one.dtype)
        else:
            others.append(one)
    if isinstance(tensor, Pretend) and torch.float64 in (*others, kwargs.get("dtype")) and _lacks_float64():
        raise TypeError("the device has no float64: move first, then convert")
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.as_subclass(Tensor)
        moved = plain.to(*others, **kwargs) if others or kwargs else plain
        device = "cpu" if func is Tensor.cpu else device
        return checked(moved.as_subclass(Pretend)) if _is_there(device) else moved.as_subclass(Tensor)


def checked(value: Any) -> Any:
    """Nothing of float64 on a device without it."""
    found = [one for one in _leaves(value) if isinstance(one, Pretend) and one.dtype == torch.float64]
    if found and _lacks_float64():
        raise TypeError("the device has no float64")
    return value


def _lacks_float64() -> bool:
    return Pretend.there.type == "mps"


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == Pretend.there.type


def _no_generator(func: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"{func.__name__}: a CPU generator draws on {Pretend.there}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def pretended(model: nn.Module) -> nn.Module:
    """The same model, its parameters and buffers on the device; in place."""
    moved: dict[int, Tensor] = {}  # a parameter of two modules stays one
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                there = nn.Parameter(parameter.detach().as_subclass(Pretend), parameter.requires_grad)
                setattr(module, name, moved.setdefault(id(parameter), checked(there)))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = checked(buffer.as_subclass(Pretend))
    return model


@contextmanager
def device(name: str) -> Iterator[torch.device]:
    """Inside, tensors can be made on the device of this name and moved to it."""
    before, Pretend.there = Pretend.there, torch.device(name, 0)
    try:
        with _Factories():
            yield Pretend.there
    finally:
        Pretend.there = before
