"""`RichBLL`, the one object that holds state: a model, its options, and what `fit` left."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from richbll import artifact, calibrating, diagnosing, fitting, updating
from richbll.checks import finite_rows, human_bytes, one_of, whole_number
from richbll.core.posterior import covariance
from richbll.diagnostics.diagnosis import Diagnosis
from richbll.errors import MemoryBudgetError, OptionError
from richbll.export import UncertainModule
from richbll.fitted import Fitted, UncertaintyHead, head_for
from richbll.functions import FunctionSamples
from richbll.holding import PosteriorHolder
from richbll.keeping import Keeping
from richbll.likelihoods.gaussian import noise_at
from richbll.network.batches import Batch, inputs_of
from richbll.network.network import forward
from richbll.network.untouched import bare, evaluating
from richbll.options import Options, checked_options
from richbll.precision import no_autocast
from richbll.predictive import ClassPredictive, JointPredictive, RegressionPredictive
from richbll.rng import child_generator
from richbll.solvers.plan import Plan
from richbll.solvers.solution import Solver


class RichBLL(PosteriorHolder):
    """Uncertainty for a trained network, at the price of its forward pass.

    Reads the training data once or twice, leaves the model as it is, and returns mean and uncertainty from then on.

    Args:
        model: any trained `nn.Module` that ends in a linear layer.
        likelihood: "regression", "classification" (one class of several), "binary" or "multilabel".
        last_layer: the last layer's name or module; found by running the model, and checked, when None.
        parameters: which of the other weights count, by name. Default: all that require a gradient.
        basis: what the gradients are projected onto: "last_layer" (the paper's), or "all_layers", which adds the
            activations that enter earlier layers.
        subsample: a number of rows, a fraction of the data, or "auto"; for classification, of each class.
        solver: "auto" (see `plan`), "exact", "cross" (exact in one pass), "sketch" (one pass, little memory), "trak"
            (the paper's reference route), or a solver of your own.
        ridge: regularises the projection of the gradients onto the features. None: 1 for classes; for regression 0, or
            a small relative floor when there are fewer than two rows per direction. "gcv": by cross-validation.
        transform: for classification "shared" (default) or "per_class"; otherwise "per_output".
        class_posterior: for classification "per_class", "shared", or "auto": per class while that fits the memory and
            there are as many rows of a class as features, on average.
        curvature: for classes "gaussian" (the paper's) or "ggn" (weights p(1 − p)).
        prior_variance: τ², one number or one per output.
        noise_variance: σ², one number, one per output, or a function x → (n, c). None: from the training residuals for
            regression, 0.1 for classes with Gaussian curvature.
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
        basis: str = "last_layer",
        subsample: int | float | str | None = None,
        solver: str | Solver = "auto",
        ridge: float | str | None = None,
        transform: str | None = None,
        class_posterior: str = "auto",
        curvature: str = "gaussian",
        prior_variance: float | Tensor = 1.0,
        noise_variance: float | Tensor | Callable[..., Any] | None = None,
        enrich: bool = True,
        memory_budget: int | str = "2GiB",
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise OptionError(f"model is a {type(model).__name__}; richbll needs a torch.nn.Module.")
        self._model = bare(model)
        self._options: Options = checked_options(
            likelihood=likelihood,
            last_layer=last_layer,
            parameters=parameters,
            basis=basis,
            subsample=subsample,
            solver=solver,
            ridge=ridge,
            transform=transform,
            class_posterior=class_posterior,
            curvature=curvature,
            prior_variance=prior_variance,
            noise_variance=noise_variance,
            enrich=enrich,
            memory_budget=memory_budget,
            seed=seed,
            progress=progress,
        )
        super().__init__()

    # ------------------------------------------------------------------ learning

    def fit(
        self,
        data: Any,
        *,
        val: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 50,
    ) -> "RichBLL":
        """Read the training data: a loader of `(x, y)`, `x` or dict batches, or a pair of tensors.

        Nothing is retrained. With `val`, `tune(val)` follows. An error half-way leaves the estimator and the model as
        they were. With `checkpoint`, what was read is kept in that file every so many batches: after a kill the same
        call goes on from there, with the same result to the bit. It needs the same batches in the same order, and
        checks that. The file is deleted when the fit is done.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> batches = [(torch.randn(32, 2), torch.randn(32)) for _ in range(3)]
            >>> RichBLL(model, noise_variance=1.0).fit(batches).num_data
            96
            >>> RichBLL(model, noise_variance=1.0).fit(batches, checkpoint="fit.ckpt", checkpoint_every=2).num_data
            96
        """
        keeping = None if checkpoint is None else Keeping(checkpoint, checkpoint_every)
        fitted = fitting.fit(self._model, data, self._options, val is not None, keeping)
        if val is not None:
            fitted = calibrating.tuned(self._model, val, fitted, self._options, "nll")
        self._become(fitted)
        if keeping is not None:
            keeping.remove()
        return self

    def tune(self, data: Any = None, method: str = "nll") -> "RichBLL":
        """Choose noise and prior scale: on held-out data by "nll" or "mse", or by "evidence" without any.

        For classes by the log-probability of held-out labels: the prior scale alone, or, where the curvature is
        Gaussian, one factor of both, which makes all variances larger or smaller.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> x, y = torch.randn(200, 2), torch.randn(200)
            >>> uq = RichBLL(model, noise_variance=0.01).fit((x[:100], y[:100])).tune((x[100:], y[100:]), method="mse")
            >>> bool(uq.noise_variance > 0.5)
            True
        """
        one_of("method", method, ("nll", "mse", "evidence"))
        self._become(calibrating.tuned(self._model, data, self._state, self._options, method))
        return self

    def update(self, data: Any, *, refit: bool = False) -> "RichBLL":
        """Condition on new data, exactly. In regression, where it has targets, the mean moves too.

        With `refit` the projection is estimated anew from old and new data. Tune before updating.

        Examples:
            >>> model, x = nn.Linear(2, 1), torch.randn(64, 2)
            >>> uq = RichBLL(model, noise_variance=0.5).fit(x)
            >>> before = uq.predict(x).std
            >>> bool((uq.update((x, x.sum(1))).predict(x).std < before).all())
            True
        """
        self._become(updating.update(self._model, data, self._state, self._options, refit))
        return self

    def conformalize(self, data: Any, score: str | None = None, **options: Any) -> "RichBLL":
        """Calibrate on held-out data: `interval` and `prediction_set` then cover at least as often as they say.

        For classes `score` is "lac" (small sets, the default) or "aps" (sets that grow with doubt); options of
        `predict`, such as `link`, must be those that predictions are asked with later.

        Examples:
            >>> model, x = nn.Linear(2, 1), torch.randn(200, 2)
            >>> uq = RichBLL(model, noise_variance=0.5).fit(x[:100]).conformalize((x[100:], torch.randn(100)))
            >>> lower, upper = uq.predict(x).interval(0.9)
        """
        predict = partial(self.predict, **options)
        self._calibration = calibrating.calibrated(self._model, data, self._state, self._options, predict, score)
        return self

    def plan(self, data: Any) -> Plan:
        """What `fit` would do with this data: route, multiply-adds and bytes of every part; reads one batch.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
            >>> print(RichBLL(model).plan(torch.randn(100, 2)))
            exact: 100 rows, gradients kept from one pass
            ...
        """
        return fitting.plan(self._model, data, self._options)

    def log_marginal_likelihood(self) -> Tensor:
        """The Laplace evidence of the training data per output, at the noise and prior in use; changes nothing.

        Examples:
            >>> uq = RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit((torch.randn(64, 2), torch.randn(64)))
            >>> uq.log_marginal_likelihood().shape
            torch.Size([1])
        """
        return calibrating.evidence(self._model, self._state, self._options)

    def diagnose(self, data: Any) -> Diagnosis:
        """Measure, at up to 2000 points, how well the last layer stands for the network, and what to expect.

        Examples:
            >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(100, 2)
            >>> print(RichBLL(model, noise_variance=0.5).fit(x).diagnose(x))
            Diagnosis at 100 points...
        """
        return diagnosing.diagnose(self._model, data, self._state, self._options)

    # ------------------------------------------------------------------ asking

    def predict(
        self,
        x: Any,
        *,
        link: str | None = None,
        num_samples: int | None = None,
        seed: int | None = None,
        score: str | None = None,
    ) -> Any:
        """Mean and uncertainty at inputs: a tensor, a tuple of tensors, or a mapping by keyword.

        Returns a `RegressionPredictive`, or for classes a `ClassPredictive`, which takes the options `link`,
        `num_samples`, `seed` and `score`. Differentiable with respect to x; the weights never receive a gradient.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> x = torch.randn(64, 2)
            >>> pred = RichBLL(model, noise_variance=0.5).fit(x).predict(x)
            >>> bool((pred.std >= 0.5 ** 0.5).all())
            True
        """
        fitted, calibration = self._state, self._calibration
        a, f = self._forward(x)
        mean, variance = self._head_for(fitted, a).in_parts(a, f)
        for part in (mean, variance):
            finite_rows("prediction", "x", part)
        given = {"link": link, "num_samples": num_samples, "seed": seed, "score": score}
        asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not self._options.is_regression:
            exclusive = self._options.likelihood == "classification"
            asked = {"score": self._options.default_score} | asked
            norms = fitted.last_layer.features(a).to(variance.dtype).square().sum(dim=1)
            return ClassPredictive(mean, variance, exclusive, calibration=calibration, features_sq=norms, **asked)
        if asked:
            raise OptionError(f"predict takes no options for regression, but got {', '.join(asked)}.")
        noise = fitted.noise_variance.to(variance)
        if self._options.noise_function is not None:
            noise = noise * noise_at(self._options.noise_function, self._inputs(x), f).to(variance)
        return RegressionPredictive(mean, variance, noise, calibration)

    def joint(self, x: Any) -> JointPredictive:
        """Mean and full covariance of the function over the points of x, per output; without noise.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> uq = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.joint(torch.randn(3, 2)).covariance.shape
            torch.Size([1, 3, 3])
        """
        a, f = self._forward(x)
        needed = 8 * len(self._state.noise_variance) * len(a) ** 2
        if needed > self._options.memory:
            raise MemoryBudgetError(
                f"The joint covariance of {len(a)} points takes {human_bytes(needed)}, more than memory_budget "
                f"({human_bytes(self._options.memory)}). Ask for fewer points, or draw functions: sample_functions."
            )
        head = self._head_for(self._state, a)
        Z = head.whitened(a)
        with no_autocast(Z.device):
            mean, S_B = head.mean(Z, f), covariance(Z)
        finite_rows("prediction", "x", torch.cat([mean, S_B.diagonal(dim1=1, dim2=2).mT], dim=1))
        return JointPredictive(mean, S_B.expand(f.shape[1], -1, -1))

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
        whole_number("num_samples", num_samples, least=1)
        c, r = self._state.last_layer.num_outputs, self._state.last_layer.num_features
        if (needed := 8 * num_samples * c * r) > self._options.memory:
            raise MemoryBudgetError(
                f"{num_samples} functions with {c} outputs over {r} features take {human_bytes(needed)}, more than "
                f"memory_budget ({human_bytes(self._options.memory)}). Draw fewer at a time, with other seeds."
            )
        generator = child_generator(whole_number("seed", seed), "functions")
        eps = torch.randn(num_samples, c, r, generator=generator, dtype=torch.float64)
        return FunctionSamples(self._forward, self._state, eps)

    def as_module(self) -> UncertainModule:
        """One `nn.Module`, x → (mean, epistemic variance), with a copy of the model inside; compiles and exports.

        Examples:
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> module = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2)).as_module()
            >>> mean, epistemic_variance = module(torch.randn(3, 2))
        """
        return UncertainModule(self._model, self._state)

    def _forward(self, x: Any) -> tuple[Tensor, Tensor]:
        """The last layer's input and the output."""
        layer = self._state.last_layer
        with evaluating(self._model):
            return forward(self._model, layer, self._inputs(x))

    def _inputs(self, x: Any) -> Batch:
        """Inputs where the model begins."""
        return inputs_of(x).to(fitting.device_of(self._model))

    def _head_for(self, fitted: Fitted, a: Tensor) -> UncertaintyHead:
        """The head in the device and precision of these features, made once for a fitted value."""
        wanted = torch.promote_types(a.dtype, torch.float32)
        if (kept := self._head) is not None and kept[0] is fitted:  # another thread may change the value meanwhile
            head = kept[1]
            if head.weight.device == a.device and head.weight.dtype == wanted:
                return head
        head = head_for(fitted, a)
        self._head = fitted, head
        return head

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str], *, moments: bool = False) -> None:
        """Write the posterior to a safetensors file: no pickle, no training data, no model weights.

        With `moments`, also what adds up with other data: for `merge`, and for `update(refit=True)` after `load`.

        Examples:
            >>> import tempfile, os
            >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            >>> uq = RichBLL(model, noise_variance=0.5).fit(torch.randn(64, 2))
            >>> from richbll import load
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     uq.save(os.path.join(folder, "uq.safetensors"))
            ...     again = load(os.path.join(folder, "uq.safetensors"), model)
            >>> x = torch.randn(3, 2)
            >>> torch.equal(uq.predict(x).std, again.predict(x).std)
            True
        """
        saved = self._options.saved(len(self._state.root))
        artifact.write(path, self._state, self._model, saved, self._calibration, moments)

    def to(self, device: str | torch.device) -> "RichBLL":
        """Move the posterior to a device. The model is yours: move it with `model.to(device)`.

        Prediction works wherever the model is. The posterior is in float64, and so stays on the CPU for a device that
        has none (MPS).

        Examples:
            >>> RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2)).to("cpu").num_data
            64
        """
        calibration = self._calibration
        self._become(self._state.to(torch.device(device)))
        if calibration is not None:
            scores = calibration.sorted_scores.to(self._state.root.device)
            self._calibration = replace(calibration, sorted_scores=scores)
        return self

    def __repr__(self) -> str:
        name = type(self._model).__name__
        if self._fitted is None:
            return f"RichBLL({name}, not fitted)"
        layer, moments = self._fitted.last_layer, self._fitted.moments
        rows = "" if moments.num_rows == moments.num_data else f" from {moments.num_rows} rows"
        return f"RichBLL({name}, last_layer='{layer.name}', r={layer.num_features}, N={moments.num_data}{rows})"
