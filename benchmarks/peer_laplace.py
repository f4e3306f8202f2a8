"""laplace-torch on the same models and data: the last layer, all weights with Kronecker factors, and function space.

Every fit gets a copy of the model, made before the clock starts, because BackPACK leaves hooks in it. What is timed is
`Laplace(...).fit(loader)`; what it does later, when first asked, is not.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fit_networks import Task
from peers import NotMeasuredError, peer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass(frozen=True)
class LaplaceFit:
    """A fitted Laplace object."""

    laplace: Any
    covers: float  # the share of the parameters that it counts
    rows: int | None  # where it reads only some of the data

    def AtA(self) -> None:
        """It has none."""

    def variances(self, x: Tensor) -> None:
        """Of another posterior, so not compared."""

    def predict(self, x: Tensor) -> object:
        """Mean and variance."""
        return self.laplace(x)


@dataclass(frozen=True)
class Tensors:
    """What `fit` needs of a loader, without the cost of collating examples one by one."""

    batches: list[tuple[Tensor, Tensor]]
    dataset: TensorDataset

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.batches)


def freeze_what_kron_refuses(model: nn.Module) -> None:
    """Only linear and convolutional layers of their own keep their gradients: no norms, no attention, no positions."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.modules():
        if type(layer) in (nn.Linear, nn.Conv2d):
            layer.requires_grad_(True)


def check_it_is_another_row(model: nn.Module, structure: str, backend: str | None, freeze: bool) -> None:
    """Rows that would repeat another one, or take hours where another backend works."""
    if freeze and all(type(layer) in (nn.Linear, nn.ReLU) for layer in model.children()):
        raise NotMeasuredError("there is nothing to freeze: Kron takes all of its layers")
    if structure == "gp" and backend is not None and isinstance(model, nn.Sequential):
        raise NotMeasuredError("the default backend works here, and faster")


def laplace(structure: str, backend: str | None = None, weights: str = "all", freeze: bool = False) -> Any:
    """A kind of Laplace approximation, with the backend that it prefers or a named one."""

    def start(task: Task) -> Callable[[], LaplaceFit]:
        library = peer("laplace")
        check_it_is_another_row(task.model, structure, backend, freeze)
        options: dict[str, Any] = {"subset_of_weights": weights, "hessian_structure": structure}
        if backend is not None:
            options["backend"] = getattr(peer("laplace.curvature"), backend)
        dataset = TensorDataset(task.x, task.y)
        loader: Any = Tensors(task.batches, dataset)
        if structure == "gp":  # makes a loader of its own out of this one
            options["n_subset"] = min(len(task.x), task.spec.gp_subset or len(task.x))
            loader = DataLoader(dataset, batch_size=task.spec.gp_batch_size or task.spec.batch_size)
        model = copy.deepcopy(task.model)
        if freeze:
            freeze_what_kron_refuses(model)
        counted = sum(p.numel() for p in model.parameters() if p.requires_grad)
        covers = counted / (task.m + task.r) if weights == "all" else task.r / (task.m + task.r)

        def run() -> LaplaceFit:
            found = library.Laplace(model, "regression", sigma_noise=task.noise_variance**0.5, **options)
            found.fit(loader)
            return LaplaceFit(found, covers, options.get("n_subset"))

        return run

    return start


def methods() -> dict[str, Any]:
    """The default backends; for Kron also ASDL and, where norms are refused, a copy with these frozen."""
    return {
        "laplace last layer": laplace("full", weights="last_layer"),
        "laplace Kron": laplace("kron"),
        "laplace Kron, ASDL": laplace("kron", backend="AsdlGGN"),
        "laplace Kron, others frozen": laplace("kron", freeze=True),
        "laplace Kron, ASDL, others frozen": laplace("kron", backend="AsdlGGN", freeze=True),
        "laplace gp": laplace("gp"),
        "laplace gp, Curvlinops": laplace("gp", backend="CurvlinopsGGN"),
    }
