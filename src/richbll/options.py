"""The options of `RichBLL`, checked once, and what they mean for each likelihood."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from richbll.checks import non_negative, number_of_bytes, one_of, true_or_false, whole_number
from richbll.core.subsample import subsample_size
from richbll.errors import OptionError
from richbll.likelihoods.bernoulli import Bernoulli
from richbll.likelihoods.categorical import Categorical
from richbll.likelihoods.gaussian import Gaussian
from richbll.network.reading import Reader
from richbll.solvers import solver_names
from richbll.solvers.solution import Solver

LIKELIHOODS = ("regression", "classification", "binary", "multilabel")
CURVATURES = ("gaussian", "ggn")


@dataclass(frozen=True)
class Options:
    """What the user asked for. `None` stands for what the likelihood prefers."""

    likelihood: str
    last_layer: str | nn.Module | None
    parameters: Callable[[str], bool] | None
    basis: str
    subsample: int | float | str | None
    solver: str | Solver
    ridge: float | str | None
    transform: str | None
    class_posterior: str
    curvature: str
    prior_variance: float | Tensor
    noise_variance: float | Tensor | Callable[..., Any] | None
    enrich: bool
    memory: int
    seed: int
    progress: bool | None

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.likelihood == "regression"

    @property
    def noise_function(self) -> Callable[..., Any] | None:
        """σ²(x), where the noise depends on the input."""
        return self.noise_variance if callable(self.noise_variance) else None

    @property
    def default_noise(self) -> float | None:
        """σ² when none is given: 0.1 for classes (the paper's), 1 where the curvature or σ²(x) already says it."""
        if self.noise_function is not None or (not self.is_regression and self.curvature == "ggn"):
            return 1.0
        return None if self.is_regression else 0.1

    @property
    def default_score(self) -> str:
        """Of how strange an input looks; `richbll bench image-scores` compares them."""
        return "relative_variance" if (self.likelihood, self.curvature) == ("classification", "gaussian") else "entropy"

    def saved(self, num_data_terms: int) -> dict[str, Any]:
        """What a file must say so that a loaded posterior is read the same way."""
        decided = "per_class" if num_data_terms > 1 else "shared"
        return {
            "likelihood": self.likelihood,
            "basis": self.basis,
            "transform": self.transform,
            "class_posterior": decided if self.likelihood == "classification" else "auto",
            "curvature": self.curvature,
            "enrich": self.enrich,
            "subsample": self.subsample,
            "solver": self.solver if isinstance(self.solver, str) else "auto",
            "ridge": self.ridge,
            "memory_budget": self.memory,
            "seed": self.seed,
            "noise_is_a_function": self.noise_function is not None,
            "noise_variance": None if self.noise_function is not None else _listed(self.noise_variance),
            "prior_variance": _listed(self.prior_variance),
        }

    def per_class(self, num_classes: int, r: int) -> bool:
        """One posterior for each class? "auto": while three sets of r × r matrices fit into a quarter of the memory."""
        if self.class_posterior == "auto":
            return 3 * 8 * num_classes * r * r <= self.memory // 4
        return self.class_posterior == "per_class"

    def keeps_classes_apart(self, num_rows: int, num_classes: int, r: int) -> bool:
        """Whether "auto" stays with one posterior for each class, as far as the data goes: from r rows of each on.

        With fewer, most directions of a class are the prior's, and the draws of its logit drown what the network says.
        """
        asked = self.class_posterior != "auto" or self.curvature != "gaussian"
        own_scales = any(isinstance(v, Tensor) and v.numel() > 1 for v in (self.prior_variance, self.noise_variance))
        return asked or own_scales or num_rows >= num_classes * r

    def reader(self, num_outputs: int, r: int, per_class: bool | None = None) -> Reader:
        """How this likelihood reads data; `per_class`, where a fit has settled it."""
        if self.likelihood == "classification":
            return Categorical(self.curvature, self.per_class(num_outputs, r) if per_class is None else per_class)
        if self.likelihood in ("binary", "multilabel"):
            return Bernoulli(self.curvature)
        return Gaussian(self.noise_function)


def checked_options(
    *,
    likelihood: str,
    basis: str,
    solver: str | Solver,
    ridge: float | str | None,
    transform: str | None,
    class_posterior: str,
    curvature: str,
    parameters: Callable[[str], bool] | None,
    noise_variance: Any,
    enrich: bool,
    memory_budget: int | str,
    seed: int,
    progress: bool | None,
    **others: Any,
) -> Options:
    """Options that can be told wrong without a model are told here."""
    one_of("likelihood", likelihood, LIKELIHOODS)
    one_of("curvature", curvature, CURVATURES)
    one_of("basis", basis, ("last_layer", "all_layers"))
    one_of("class_posterior", class_posterior, ("auto", "per_class", "shared"))
    if transform is not None:
        allowed = ("shared", "per_class") if likelihood == "classification" else ("per_output",)
        one_of("transform", transform, allowed)
    if isinstance(ridge, str):
        one_of("ridge", ridge, ("gcv",))
    elif ridge is not None:
        ridge = non_negative("ridge", ridge)
    if class_posterior != "auto" and likelihood != "classification":
        raise OptionError(f"class_posterior={class_posterior!r} is for classification.")
    if ridge == "gcv" and transform == "per_class":
        raise OptionError('ridge="gcv" chooses one ridge for one transform: it does not go with transform="per_class".')
    if isinstance(solver, str):
        one_of("solver", solver, ("auto", *solver_names()))
    if isinstance(others["subsample"], str):
        one_of("subsample", others["subsample"], ("auto",))
    elif others["subsample"] is not None:
        subsample_size(others["subsample"], num_data=1, least=1)
        number = others["subsample"]
        others["subsample"] = int(number) if isinstance(number, Integral) else float(number)
    if curvature == "ggn" and likelihood == "regression":
        raise OptionError('curvature="ggn" is for classes; regression has Gaussian curvature by itself.')
    if callable(noise_variance) and likelihood != "regression":
        raise OptionError("noise_variance as a function of x is for regression.")
    if parameters is not None and not callable(parameters):
        raise OptionError(f"parameters={parameters!r}: must be a function of a parameter's name, or None.")
    if not isinstance(solver, str) and not callable(solver):
        raise OptionError(f"solver={solver!r}: must be a name, or a function like those in richbll.solvers.")
    noise_variance, others["prior_variance"] = _one_each(noise_variance), _one_each(others["prior_variance"])
    if progress is not None:
        true_or_false("progress", progress)
    return Options(
        likelihood=likelihood,
        basis=basis,
        solver=solver,
        ridge=ridge,
        transform=transform,
        class_posterior=class_posterior,
        curvature=curvature,
        parameters=parameters,
        noise_variance=noise_variance,
        enrich=true_or_false("enrich", enrich),
        memory=number_of_bytes(memory_budget),
        seed=whole_number("seed", seed),
        progress=progress,
        **others,
    )


def _one_each(scale: Any) -> Any:
    """A list or an array of numbers as a tensor; all else as it is, to be looked at when the outputs are known."""
    try:
        return torch.as_tensor(scale, dtype=torch.float64) if isinstance(scale, list | tuple | np.ndarray) else scale
    except (TypeError, ValueError, RuntimeError):
        return scale


def _listed(scale: Any) -> Any:
    """What JSON can hold."""
    return scale.tolist() if isinstance(scale, Tensor) else None if scale is None else float(scale)
