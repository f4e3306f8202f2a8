"""`RichBLL`, the one object that holds state: a model, its options, and what `fit` left."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from richbll import artifact
from richbll.checks import finite_rows, non_negative, number_of_bytes, one_of, positive_per_output
from richbll.core.posterior import covariance, function_offsets
from richbll.core.projection import default_ridge
from richbll.errors import NotFittedError, OptionError, RichBLLWarning
from richbll.export import UncertainModule
from richbll.fitted import Fitted, UncertaintyHead, head_for, posterior_for
from richbll.likelihoods.gaussian import noise_from_residuals
from richbll.network.batches import Stream, inputs_of
from richbll.network.held_rows import hold_rows
from richbll.network.network import Network, read_network
from richbll.network.untouched import evaluating, uncompiled, untouched
from richbll.predictive import JointPredictive, RegressionPredictive
from richbll.rng import child_generator
from richbll.solvers import choose_solver
from richbll.solvers.solution import Solution, Solver, Source


class RichBLL:
    """Uncertainty for a trained network, at the price of its forward pass.

    Reads the training data once or twice, leaves the model as it is, and returns mean and uncertainty from then on.

    Args:
        model: any trained `nn.Module` that ends in a linear layer.
        likelihood: "regression".
        last_layer: the last layer's name or module; found by running the model, and checked, when None.
        parameters: which of the other weights count, by name. Default: all that require a gradient.
        subsample: a number of rows or a fraction of the data to use instead of all of it; never below r.
        solver: "auto", "exact" (two passes), "cross" (one pass), or a solver of your own.
        ridge: regularises the projection of the gradients onto the features. None: 0, or a small relative floor
            when there are fewer than two rows per direction.
        prior_variance: τ², one number or one per output.
        noise_variance: σ², one number or one per output. None: estimated from the training residuals.
        enrich: False is the plain Bayesian last layer.
        memory_budget: what the fit may use beyond the model, e.g. "2GiB".
        seed: for subsampling.
        progress: True or False for a progress bar; None shows one on a terminal.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        >>> x = torch.randn(100, 2)
        >>> uq = RichBLL(model, noise_variance=0.1).fit((x, x.sum(1)))
        >>> pred = uq.predict(x[:5])
        >>> pred.mean.shape, pred.std.shape
        (torch.Size([5, 1]), torch.Size([5, 1]))
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: str = "regression",
        *,
        last_layer: str | nn.Module | None = None,
        parameters: Callable[[str], bool] | None = None,
        subsample: int | float | None = None,
        solver: str | Solver = "auto",
        ridge: float | None = None,
        prior_variance: float | Tensor = 1.0,
        noise_variance: float | Tensor | None = None,
        enrich: bool = True,
        memory_budget: int | str = "2GiB",
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"model is a {type(model).__name__}; richbll needs a torch.nn.Module.")
        self._model = uncompiled(model)
        self._likelihood = one_of("likelihood", likelihood, ["regression"])
        self._last_layer = last_layer
        self._parameters = parameters
        self._subsample = subsample
        self._solver = solver
        self._ridge = None if ridge is None else non_negative("ridge", ridge)
        self._prior_variance = prior_variance
        self._noise_variance = noise_variance
        self._enrich = enrich
        self._memory = number_of_bytes(memory_budget)
        self._seed = seed
        self._progress = progress
        self._fitted: Fitted | None = None
        self._head: UncertaintyHead | None = None

    # ------------------------------------------------------------------ fitting

    def fit(self, data: Any) -> "RichBLL":
        """Read the training data: a loader of `(x, y)`, `x` or dict batches, or a pair of tensors.

        Nothing is retrained. An error half-way leaves the estimator and the model as they were.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> batches = [(torch.randn(32, 2), torch.randn(32)) for _ in range(3)]
            >>> RichBLL(model, noise_variance=1.0).fit(batches).num_data
            96
        """
        with untouched(self._model):
            stream = Stream(data, _device_of(self._model), self._progress)
            network = read_network(self._model, stream.peek(), self._last_layer, self._parameters, self._enrich)
            source: Source = stream
            if self._subsample is not None:
                r = network.last_layer.num_features
                source = hold_rows(stream, self._subsample, r, self._seed, self._memory // 2)
            solution = choose_solver(self._solver, source)(network, source, self._memory)
        self._become(self._finished(network, solution))
        return self

    def _finished(self, network: Network, solution: Solution) -> Fitted:
        """Ridge, posterior and noise: what follows from a solution without the data."""
        moments, projection = solution.moments, solution.projection
        ridge = self._ridge
        if ridge is None:
            ridge = default_ridge(projection.spectrum, moments.num_rows) if network.parameter_sizes else 0.0
            if ridge > 0:
                warnings.warn(
                    f"{moments.num_rows} rows for {projection.spectrum.rank} feature directions are too few for plain "
                    f"least squares; the projection is regularised with ridge={ridge:.3g}. Read more rows if you can.",
                    RichBLLWarning,
                    stacklevel=3,
                )
        posterior = posterior_for(projection, moments, ridge)
        c, device = network.last_layer.num_outputs, posterior.W.device
        tau2 = positive_per_output("prior_variance", self._prior_variance, c).to(device)
        if self._noise_variance is not None:
            sigma2 = positive_per_output("noise_variance", self._noise_variance, c).to(device)
        else:
            sigma2 = noise_from_residuals(moments, posterior, tau2)
            warnings.warn(
                "The noise is estimated from training residuals, which understate it when the network has fitted its "
                "training data closely. Better: noise_variance=… from the error on data it was not trained on.",
                RichBLLWarning,
                stacklevel=3,
            )
        names = tuple(network.parameter_sizes)
        return Fitted(network.last_layer, names, moments, projection, ridge, posterior, sigma2, tau2)

    def _become(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self._head = None

    # ------------------------------------------------------------------ asking

    def predict(self, x: Any) -> RegressionPredictive:
        """Mean and uncertainty at inputs: a tensor, a tuple of tensors, or a mapping by keyword.

        Differentiable with respect to x. The model's own weights never receive a gradient.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> x = torch.randn(64, 2)
            >>> pred = RichBLL(model, noise_variance=0.5).fit(x).predict(x)
            >>> bool((pred.std >= 0.5 ** 0.5).all())
            True
        """
        a, f = self._forward(x)
        variance = self._head_for(a).in_parts(a)
        mean = f.to(variance.dtype)
        finite_rows("prediction", "x", torch.cat([mean, variance], dim=1))
        return RegressionPredictive(mean, variance, self._state.noise_variance.to(variance))

    def joint(self, x: Any) -> JointPredictive:
        """Mean and full covariance of the function over the points of x, per output; without noise.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> uq = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.joint(torch.randn(3, 2)).covariance.shape
            torch.Size([1, 3, 3])
        """
        a, f = self._forward(x)
        S_B = covariance(self._head_for(a).whitened(a))
        finite_rows("prediction", "x", torch.cat([f.to(S_B.dtype), S_B.diagonal(dim1=1, dim2=2).mT], dim=1))
        return JointPredictive(f.to(S_B.dtype), S_B)

    def sample_functions(self, num_samples: int, *, seed: int = 0) -> "FunctionSamples":
        """Coherent draws from the posterior over functions: a callable x → (num_samples, n, c).

        The same draw may be evaluated at any inputs, in any number of calls.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> uq = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2))
            >>> functions = uq.sample_functions(4, seed=0)
            >>> functions(torch.randn(3, 2)).shape
            torch.Size([4, 3, 1])
        """
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
            raise OptionError(f"num_samples={num_samples!r}: must be a positive whole number.")
        c, r = self._state.posterior.eigenvalues.shape
        generator = child_generator(seed, "functions")
        eps = torch.randn(num_samples, c, r, generator=generator, dtype=torch.float64)
        return FunctionSamples(self, self._state, eps)

    def as_module(self) -> UncertainModule:
        """One `nn.Module`, x → (mean, epistemic variance), with a copy of the model inside; compiles and exports.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> module = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2)).as_module()
            >>> mean, epistemic_variance = module(torch.randn(3, 2))
        """
        return UncertainModule(self._model, self._state)

    def _forward(self, x: Any, fitted: Fitted | None = None) -> tuple[Tensor, Tensor]:
        network = Network(self._model, (fitted or self._state).last_layer, {})
        with evaluating(self._model):
            return network.forward(inputs_of(x).to(network.device))

    def _head_for(self, a: Tensor) -> UncertaintyHead:
        """The head in the device and precision of these features, made once."""
        head = self._head
        wanted = torch.promote_types(a.dtype, torch.float32)
        if head is None or head.weight.device != a.device or head.weight.dtype != wanted:
            head = self._head = head_for(self._state, a)
        return head

    # ------------------------------------------------------------------ scales

    @property
    def _state(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("This RichBLL has not seen any data: call fit(loader) first.")
        return self._fitted

    @property
    def noise_variance(self) -> Tensor:
        """σ² (c,). Assigning a number, or one per output, takes effect at once; the data is not read again.

        Examples:
            >>> uq = RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.noise_variance = 0.25
            >>> uq.noise_variance
            tensor([0.2500], dtype=torch.float64)
        """
        return self._state.noise_variance.clone()

    @noise_variance.setter
    def noise_variance(self, value: float | Tensor) -> None:
        given = positive_per_output("noise_variance", value, self._state.last_layer.num_outputs)
        self._become(replace(self._state, noise_variance=given.to(self._state.posterior.W.device)))

    @property
    def prior_variance(self) -> Tensor:
        """τ² (c,). Assigning a number, or one per output, takes effect at once; the data is not read again.

        Examples:
            >>> uq = RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.prior_variance = 10
            >>> uq.prior_variance
            tensor([10.], dtype=torch.float64)
        """
        return self._state.prior_variance.clone()

    @prior_variance.setter
    def prior_variance(self, value: float | Tensor) -> None:
        given = positive_per_output("prior_variance", value, self._state.last_layer.num_outputs)
        self._become(replace(self._state, prior_variance=given.to(self._state.posterior.W.device)))

    @property
    def ridge(self) -> float:
        """λ in use. Assigning a number costs O(r³); the data is not read again.

        Examples:
            >>> uq = RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.ridge = 1.0
            >>> uq.ridge
            1.0
        """
        return self._state.ridge

    @ridge.setter
    def ridge(self, value: float) -> None:
        self._become(self._state.with_ridge(non_negative("ridge", value)))

    @property
    def num_data(self) -> int:
        """N: how many examples the posterior stands for.

        Examples:
            >>> RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2)).num_data
            64
        """
        return self._state.moments.num_data

    @property
    def subsample_size(self) -> int:
        """k: how many rows were read for it.

        Examples:
            >>> RichBLL(nn.Linear(2, 1), noise_variance=0.5, subsample=16).fit(torch.randn(64, 2)).subsample_size
            16
        """
        return self._state.moments.num_rows

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a safetensors file: no pickle, no training data, no model weights.

        Examples:
            >>> import tempfile, os
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> uq = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     uq.save(os.path.join(folder, "uq.safetensors"))
            ...     again = load(os.path.join(folder, "uq.safetensors"), model)
            >>> x = torch.randn(3, 2)
            >>> torch.equal(uq.predict(x).std, again.predict(x).std)
            True
        """
        artifact.write(path, self._state, self._model, {"likelihood": self._likelihood, "enrich": self._enrich})

    def to(self, device: str | torch.device) -> "RichBLL":
        """Move the posterior to a device. The model is yours: move it with `model.to(device)`.

        Examples:
            >>> RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2)).to("cpu").num_data
            64
        """
        moved = {name: tensor.to(device) for name, tensor in self._state.tensors().items()}
        self._become(self._state.with_tensors(moved))
        return self

    def __repr__(self) -> str:
        name = type(self._model).__name__
        if self._fitted is None:
            return f"RichBLL({name}, not fitted)"
        layer, moments = self._fitted.last_layer, self._fitted.moments
        rows = "" if moments.num_rows == moments.num_data else f" from {moments.num_rows} rows"
        return f"RichBLL({name}, last_layer='{layer.name}', r={layer.num_features}, N={moments.num_data}{rows})"


class FunctionSamples:
    """Functions drawn from a posterior, made by `RichBLL.sample_functions`; later changes of the estimator do not
    move them."""

    def __init__(self, estimator: RichBLL, fitted: Fitted, eps: Tensor) -> None:
        self._estimator = estimator
        self._fitted = fitted
        self._eps = eps  # (s, c, r)

    def __call__(self, x: Any) -> Tensor:
        """All draws at the inputs x."""  # (s, n, c)
        a, f = self._estimator._forward(x, self._fitted)
        Z = head_for(self._fitted, a).whitened(a)
        return f.to(Z.dtype) + function_offsets(Z, self._eps.to(Z))


def load(path: str | os.PathLike[str], model: nn.Module, device: str | torch.device = "cpu") -> RichBLL:
    """Read a saved posterior for the model that it was fitted to.

    A file that is truncated, of another format or of another architecture raises an `ArtifactError` that says what
    differs.

    Examples:
        >>> load("nowhere.safetensors", nn.Linear(2, 1))
        Traceback (most recent call last):
        richbll.errors.ArtifactError: nowhere.safetensors: no such file.
    """
    model = uncompiled(model)
    fitted, options = artifact.read(path, model, device)
    names = set(fitted.parameter_names)
    estimator = RichBLL(
        model,
        options.get("likelihood", "regression"),
        last_layer=fitted.last_layer.name,
        parameters=names.__contains__,
        enrich=bool(options.get("enrich", True)),
        prior_variance=fitted.prior_variance,
        noise_variance=fitted.noise_variance,
    )
    estimator._become(fitted)
    return estimator


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
