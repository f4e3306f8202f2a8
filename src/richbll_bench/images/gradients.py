"""Gradients of a classifier's predicted logits, as kernels between images."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from richbll_bench.spectra import Features

_MOST_ELEMENTS = 2**28  # of gradients held at once: 1 GiB in float32
_IMAGES = 50  # at a time


def class_features(model: nn.Module, x: Tensor) -> Features:
    """The gradient of f_c(x) with c the predicted class, by groups of parameters that fit into memory together.

    Two images share weights of the last layer only where their predicted classes are the same.
    """
    assert isinstance(model, nn.Sequential)
    with torch.no_grad():
        a = torch.cat([model[:-1](some) for some in torch.split(x, 256)])
        classes = model[-1](a).argmax(dim=1)
    factor = float(getattr(model[-1], "factor", 1.0))
    phi_r = torch.cat([factor * a, torch.ones(len(a), 1)], dim=1).double()  # (N, r)
    same = (classes.unsqueeze(0) == classes.unsqueeze(1)).double()
    last = {f"{len(model) - 1}.{name}" for name, _ in model[-1].named_parameters()}
    names = [name for name, p in model.named_parameters() if name not in last]
    other = torch.zeros(len(x), len(x), dtype=torch.float64)
    for group in _groups(model, names, _MOST_ELEMENTS // len(x)):
        J = torch.cat([_gradients(model, group, *some) for some in _parts(x, classes)])  # (N, size)
        for columns in torch.split(J, 2**16, dim=1):
            wide = columns.double()
            other += wide @ wide.mT
    num_other = sum(model.get_parameter(name).numel() for name in names)
    return Features(phi_r, other, same * (phi_r @ phi_r.mT), num_other)


def _parts(x: Tensor, classes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.split(x, _IMAGES), torch.split(classes, _IMAGES), strict=True)


def _groups(model: nn.Module, names: list[str], most: int) -> Iterator[list[str]]:
    """Neighbouring parameters of no more than so many elements, or one that is larger by itself."""
    group: list[str] = []
    for name in names:
        if group and sum(model.get_parameter(one).numel() for one in [*group, name]) > most:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _gradients(model: nn.Module, names: list[str], x: Tensor, classes: Tensor) -> Tensor:
    """∂f_c/∂θ of every image, for some parameters."""  # (n, size)
    fixed = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fixed = {name: tensor.detach() for name, tensor in fixed.items()}

    def logit(theta: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        output = functional_call(model, fixed | theta, (one.unsqueeze(0),))[0]
        return output.gather(0, label.unsqueeze(0))[0]

    theta = {name: fixed[name] for name in names}
    found = vmap(grad(logit), in_dims=(None, 0, 0))(theta, x, classes)
    return torch.cat([found[name].flatten(1) for name in names], dim=1).detach()
