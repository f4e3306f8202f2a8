"""Ways from (model, data) to L: the solvers of richbll, each under its name, and the peers'.

A method makes itself ready for a task, and what it returns is then timed: it runs the fit and gives back a `Fit`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import peer_laplace
import peer_trak
from fit_networks import Task
from torch import Tensor

from richbll import RichBLL
from richbll.core.posterior import posterior_in_basis
from richbll.core.transform import kept_factor
from richbll.solvers import named_solver, solver_names
from richbll.solvers.solution import Solver

_SKETCH_SIZES = (512, 2048)
_TIMES_AS_LONG = 4  # as traker's projector given all rows: ours draws its matrix for every batch


class Fit(Protocol):
    """What a fit leaves."""

    def AtA(self) -> Tensor | None:
        """AᵀA (r, r), where the method has one."""

    def variances(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Epistemic variances (n,) with and without enrichment, where the method has these."""

    def predict(self, x: Tensor) -> object:
        """What a user asks for at new inputs."""


Start = Callable[[Task], Callable[[], Fit]]


@dataclass(frozen=True)
class RichFit:
    """A fitted RichBLL."""

    uq: RichBLL
    task: Task

    def AtA(self) -> Tensor:
        """For the ridge in use."""
        return self.uq._state.projections[0].AtA(self.uq.ridge)[0]

    def variances(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `predict` gives them, in float32; plain from a fit of its own with the same noise."""
        plain = RichBLL(self.task.model, noise_variance=self.task.noise_variance, enrich=False, progress=False)
        plain.fit(self.task.batches)
        rich, without = (uq.predict(x).epistemic_variance.double().squeeze(1) for uq in (self.uq, plain))
        return rich, without

    def predict(self, x: Tensor) -> object:
        """Mean and standard deviation."""
        return self.uq.predict(x).std

    def after_L(self) -> Callable[[], object]:
        """What a fit does once L = Q diag(C, I) is there: the posterior in spectral form."""
        projection, weight = self.uq._state.projections[0], self.uq._state.moments.row_weight
        C = kept_factor(projection, self.uq.ridge)
        return lambda: posterior_in_basis(projection.spectrum, C, weight)


def rich(solver: Solver, dense_size: int | None = None) -> Start:
    """One of our own solvers; `dense_size` is the q of one that draws a dense matrix, which may take too long."""

    def start(task: Task) -> Callable[[], RichFit]:
        if dense_size is not None:
            peer_trak.check_it_ends(task, dense_size, _TIMES_AS_LONG)
        ridge, noise, batches = task.truth.ridge, task.noise_variance, task.batches

        def run() -> RichFit:
            uq = RichBLL(task.model, noise_variance=noise, ridge=ridge, solver=solver, progress=False)
            return RichFit(uq.fit(batches), task)

        return run

    return start


def own_methods() -> dict[str, Start]:
    """Every solver that there is, those that sketch in two sizes."""
    found: dict[str, Start] = {}
    for name in sorted(solver_names(), key=lambda name: (name != "exact", name)):
        solver: Any = named_solver(name)
        if hasattr(solver, "size"):  # a frozen value, whose size may be another
            for q in _SKETCH_SIZES:
                found[f"richbll {name} q={q}"] = rich(replace(solver, size=q), q if name == "trak" else None)
        else:
            found[f"richbll {name}"] = rich(solver)
    return found


def methods() -> dict[str, Start]:
    """All methods by name."""
    return own_methods() | peer_trak.methods() | peer_laplace.methods()
