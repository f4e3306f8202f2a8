"""The user's model as richbll reads it: features and outputs in one forward pass, and gradients."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from richbll.checks import finite_rows
from richbll.errors import ModelError, NonFiniteError, RichBLLWarning
from richbll.network.batches import Batch, tensors_in
from richbll.network.functional import call_with
from richbll.network.gradients import ExampleGradients
from richbll.network.last_layer import LastLayer, check_output, find_last_layer
from richbll.network.outputs import read_output
from richbll.network.reading import Reader
from richbll.network.taps import find_taps, recorded_inputs


@dataclass(frozen=True)
class Network:
    """A model, its last layer, which of the other parameters count, and how its likelihood reads data."""

    model: nn.Module
    last_layer: LastLayer
    parameter_sizes: dict[str, int]  # name → number of elements; together m
    reader: Reader

    @property
    def device(self) -> torch.device:
        """Where the last layer lives."""
        return self.model.get_submodule(self.last_layer.name).get_parameter("weight").device

    @property
    def num_gradients(self) -> int:
        """How many gradients an example gives: one per output, or that of one chosen output."""
        return 1 if self.reader.one_column else self.last_layer.num_outputs

    def features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """φ^r (n, r) and f (n, c), checked: finite, and the output still comes from the last layer alone."""
        a, f = forward(self.model, self.last_layer, batch)
        return self.checked(a, f, batch), f

    def checked(self, a: Tensor, f: Tensor, batch: Batch, is_its_output: bool = False) -> Tensor:
        """φ^r (n, r) from the last layer's input, once both are known to be as they must.

        That f is the last layer's output may be known already.
        """
        finite_rows("last-layer features", batch.where, a)
        finite_rows("output", batch.where, f)
        if not is_its_output:
            check_output(self.last_layer, self.model.get_submodule(self.last_layer.name), a, f, batch.where)
        return self.last_layer.features(a)

    def gradients(self) -> ExampleGradients:
        """A reader of φ^m."""
        return ExampleGradients(self.model, list(self.parameter_sizes))


def forward(model: nn.Module, last_layer: LastLayer, batch: Batch) -> tuple[Tensor, Tensor]:
    """The last layer's input a (n, d) and the output f (n, c), in one pass.

    Differentiable with respect to the inputs where these require a gradient; the weights never get one.
    """
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((batch.args, batch.kwargs)))
    with recorded_inputs(last_layer.layers(model)) as inputs, torch.set_grad_enabled(wanted):
        if wanted:
            constants = {name: p.detach() for name, p in model.named_parameters()}
            raw = call_with(model, constants, batch.args, batch.kwargs)
        else:
            raw = model(*batch.args, **batch.kwargs)
    a, f = last_layer.input_rows(inputs, batch.size), read_output(raw, batch.size)
    if f.shape[1] != last_layer.num_outputs or len(inputs[0]) != 1:
        raise ModelError(
            f"The model has changed since the fit: {f.shape[1]} outputs instead of {last_layer.num_outputs}, and its "
            f"last layer '{last_layer.name}' was run {len(inputs[0])} times. Fit again."
        )
    return a, f


def read_network(
    model: nn.Module,
    batch: Batch,
    last_layer: str | nn.Module | None = None,
    parameters: Callable[[str], bool] | None = None,
    *,
    make_reader: Callable[[int, int], Reader],
    enrich: bool = True,
    wide: bool = False,
) -> Network:
    """Find the last layer and choose the other parameters: all that require a gradient, or what a predicate says.

    Without `enrich` none of them counts, which is the plain Bayesian last layer; `wide` adds the activations that enter
    earlier layers to the features. The reader is made for the number of
    outputs and of features.
    """
    _check_weights(model, batch)
    found = find_last_layer(model, batch, last_layer)
    if wide:
        found = replace(found, taps=find_taps(model, batch, found.name))
        if not found.taps:
            warnings.warn(
                'basis="all_layers" found no earlier linear or convolutional layer to read: it is basis="last_layer".',
                RichBLLWarning,
                stacklevel=3,
            )
    reader = make_reader(found.num_outputs, found.num_features)
    if not enrich:
        return Network(model, found, {}, reader)
    prefix = f"{found.name}." if found.name else ""
    own = {f"{prefix}weight", f"{prefix}bias"}
    others = {name: p for name, p in model.named_parameters() if name not in own}
    if parameters is None:
        chosen = {name: p for name, p in others.items() if p.requires_grad}
    else:
        chosen = {name: p for name, p in others.items() if parameters(name)}
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise ModelError(
                f"Parameter '{name}' has dtype {parameter.dtype}, which has no gradient here. "
                "Leave it out with parameters=lambda name: …"
            )
    if others and not chosen:
        warnings.warn(
            f"None of the {len(others)} parameter tensors before the last layer counts "
            f"({'they are all frozen' if parameters is None else 'the predicate chose none'}), so Rich-BLL is the "
            "plain Bayesian last layer. To count frozen weights too: parameters=lambda name: True.",
            RichBLLWarning,
            stacklevel=3,
        )
    return Network(model, found, {name: p.numel() for name, p in chosen.items()}, reader)


def _check_weights(model: nn.Module, batch: Batch) -> None:
    """A saturating activation can hide an infinite weight from the features, so the weights are looked at too."""
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ModelError(f"Parameter '{name}' has no shape yet: run one batch through the model first.")
    with torch.no_grad():  # NaN and Inf survive every sum
        total = sum(float(p.sum()) if p.is_floating_point() else math.nan for p in named.values())
    if math.isfinite(total):
        return
    for name, parameter in named.items():
        finite = torch.isfinite(parameter.detach())
        if not bool(finite.all()):
            raise NonFiniteError(
                f"Parameter '{name}' holds NaN or Inf in {int((~finite).sum())} of {parameter.numel()} values, so "
                f"{batch.where} was not read. Nothing was changed. Load weights that are finite."
            )
