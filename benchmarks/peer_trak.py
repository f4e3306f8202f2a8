"""The paper's own route, TRAK-style: per-example gradients by vmap(grad), projected by traker's `BasicProjector`.

Then A by least squares in float64. The projector draws its matrix anew at every call. So there are two rows: one gives
it as many examples at a time as fit into a fixed memory, which is the best that can be made of it; "by batches" calls
it for every batch, as traker's own `featurize` does. Numbers are normal, which are the faster ones on a CPU.
It does not divide by √q.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from fit_networks import Task
from peers import NotMeasuredError, peer
from torch import Tensor
from truth import example_gradients, last_layer_features, variance
from yards import one_forward

_MOST_BYTES = 2_700_000_000  # of gradients that are held to be projected at once
_VMAP_ROWS = 64
_MOST_PRODUCTS = 5e12  # N m q: beyond this a fit takes a quarter of an hour and is left out


@dataclass(frozen=True)
class SketchedFit:
    """AᵀA from sketched gradients, and what the features leave."""

    task: Task
    moment: Tensor  # (r, r) AᵀA
    gram: Tensor
    L: Tensor

    def AtA(self) -> Tensor:
        """As estimated."""
        return self.moment

    def variances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """In float64, from float32 features."""
        phi = last_layer_features(self.task.model, x).double()
        noise = self.task.noise_variance
        rich, plain = (variance(M, self.gram, phi, noise) for M in (self.moment, torch.zeros_like(self.moment)))
        return rich, plain

    def predict(self, x: Tensor) -> object:
        """Nothing of its own: the posterior is that of any Bayesian last layer."""
        return one_forward(self.task.model, x)


def check_it_ends(task: Task, q: int, times_as_long: int = 1) -> None:
    """Leave out what would take too long."""
    if times_as_long * len(task.x) * task.m * q > _MOST_PRODUCTS:
        raise NotMeasuredError(f"q = {q} for {task.m:,} parameters and {len(task.x)} rows takes too long")


def trak(q: int, by_batches: bool = False) -> Callable[[Task], Callable[[], SketchedFit]]:
    def start(task: Task) -> Callable[[], SketchedFit]:
        projectors = peer("trak.projectors")
        check_it_ends(task, q)
        ridge = task.truth.ridge

        def run() -> SketchedFit:
            projector = projectors.BasicProjector(
                grad_dim=task.m, proj_dim=q, seed=0, proj_type=projectors.ProjectionType.normal, device="cpu"
            )
            held = min(len(task.x), max(_VMAP_ROWS, _MOST_BYTES // (4 * task.m)))
            held = min(held, task.spec.batch_size) if by_batches else held
            gradients = torch.empty(held, task.m)
            sketched = []
            for x in torch.split(task.x, held):
                start = 0
                for part in example_gradients(task.model, x, _VMAP_ROWS):
                    gradients[start : start + len(part)] = part
                    start += len(part)
                sketched.append(projector.project(gradients[: len(x)], model_id=0) / q**0.5)
            return solved(task, torch.cat(sketched).double(), ridge)

        return run

    return start


def solved(task: Task, sketch: Tensor, ridge: float) -> SketchedFit:
    """A = (Φ^rᵀΦ^r + λI)⁻¹Φ^rᵀ(Φ^m P), and L."""
    phi = last_layer_features(task.model, task.x).double()
    gram, identity = phi.mT @ phi, torch.eye(phi.shape[1], dtype=torch.float64)
    A = torch.linalg.solve(gram + ridge * identity, phi.mT @ sketch)  # (r, q)
    moment = A @ A.mT
    return SketchedFit(task, moment, gram, torch.linalg.cholesky(identity + moment))


def methods() -> dict[str, Callable[[Task], Callable[[], SketchedFit]]]:
    together = {f"TRAK q={q}": trak(q) for q in (512, 2048)}
    return together | {"TRAK q=2048, by batches": trak(2048, by_batches=True)}
