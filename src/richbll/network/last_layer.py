"""The last layer: found by running the model, and checked to be its output.

The check is by definition: φ^r is the gradient of the output by the last layer's weight and bias. For a random
probe R (n, c), the gradient of Σ R∘f by the weight must be α Rᵀa and by the bias β Rᵀ1, with a the layer's input and
two constants, (1, 1) for a plain `nn.Linear` and (s, 1) for a read-out that multiplies by s (μP). A head that is used
twice, tied to other weights, squashed, mixed or scaled per output fails it. Of a plain sequence of torch's own layers
that ends in an `nn.Linear` nothing has to be found out; of any other model outputs are compared in every batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from richbll.checks import finite_rows
from richbll.errors import LastLayerError, ModelError
from richbll.network.batches import Batch
from richbll.network.functional import call_with
from richbll.network.outputs import coarsest, read_output, same_outputs, same_up_to_rounding
from richbll.network.plain import is_plain, leaves_of
from richbll.network.taps import Tap, recorded_inputs
from richbll.precision import in_float64
from richbll.rng import child_generator

_PROBE_ROWS = 8
_FEW_ROWS = 2  # enough to see that a model runs, and its layers in which order


@dataclass(frozen=True)
class LastLayer:
    """Where the last layer is and how its weights enter the output: f = α W a + β b + constant."""

    name: str
    num_inputs: int
    num_outputs: int
    has_bias: bool
    weight_factor: float  # α
    bias_factor: float  # β
    constant: Tensor  # (c,) β b and whatever constant the model adds
    taps: tuple[Tap, ...] = ()  # earlier layers whose inputs widen the basis

    @property
    def num_own(self) -> int:
        """How many features are the gradient by the last layer itself."""
        return self.num_inputs + int(self.has_bias)

    @property
    def num_features(self) -> int:
        """r: the length of φ^r, the wider basis included."""
        return self.num_own + sum(tap.width for tap in self.taps)

    def features(self, a: Tensor) -> Tensor:
        """φ^r(x) = (α a, β), the gradient of an output by its row of the weight and its bias; then the taps."""
        own, others = a[:, : self.num_inputs], a[:, self.num_inputs :]
        phi_r = own if self.weight_factor == 1 else own * self.weight_factor
        if self.has_bias:
            phi_r = nn.functional.pad(phi_r, (0, 1), value=self.bias_factor)
        return torch.cat([phi_r, self.weight_factor * others], dim=1) if self.taps else phi_r

    def layers(self, model: nn.Module) -> list[nn.Module]:
        """The last layer and the tapped ones: whose inputs a forward pass must record."""
        return [model.get_submodule(name) for name in (self.name, *(tap.name for tap in self.taps))]

    def input_rows(self, inputs: list[list[Tensor]], num_rows: int) -> Tensor:
        """What `layers` received, as (n, d); refused when the last layer is applied at several positions."""
        given, *others = [found[0] if found else None for found in inputs]
        if given is None:
            raise LastLayerError(f"The last layer '{self.name}' was not reached in this forward pass.")
        if given.numel() != num_rows * self.num_inputs:
            raise LastLayerError(f"The last layer '{self.name}' {_positions(given, num_rows)}")
        a = given.reshape(num_rows, self.num_inputs)
        if not self.taps or num_rows == 0:
            return a if not self.taps else a.new_zeros(0, self.num_inputs + sum(tap.width for tap in self.taps))
        pooled = [tap.pooled(other, num_rows).to(a.dtype) for tap, other in zip(self.taps, others, strict=True)]
        return torch.cat([a, *pooled], dim=1)


def _positions(given: Tensor, num_rows: int) -> str:
    return (
        f"receives shape {tuple(given.shape)} for {num_rows} examples: it is applied at several positions, or a single "
        "example lacks its batch dimension. Select or pool the position before the last layer, so that each example "
        "has one feature vector."
    )


def find_last_layer(model: nn.Module, batch: Batch, requested: str | nn.Module | None = None) -> LastLayer:
    """The linear layer that produces the output, by name, by identity, or found in the order of execution."""
    if requested is not None:
        name = _requested_name(model, requested)
        return _checked(model, name, batch)
    plain = is_plain(model, batch)
    if plain and (known := _plainly_last(model)) is not None:
        _check_that_it_runs(model, batch)
        return known
    refused = []
    for name in reversed(_linear_layers_run(model, batch, plain)):
        try:
            return _checked(model, name, batch)
        except LastLayerError as error:
            refused.append(f"\n  - {error}")
    raise LastLayerError(
        "No linear layer produces the model's output, up to reshaping, a constant factor and a constant."
        + ("".join(refused[:3]) or " The model ran no nn.Linear at all.")
        + "\nIf something is applied after the last layer (softmax, a scaling per output, a skip connection), wrap the "
        "model so that it returns the last layer's output; or name the layer with last_layer=…"
    )


def _plainly_last(model: nn.Module) -> LastLayer | None:
    """The end of a plain sequence, where that is a linear layer: what it does to the output is known from its type."""
    layer = list(leaves_of(model))[-1]
    if type(layer) is not nn.Linear:
        return None
    name = next(name for name, module in model.named_modules() if module is layer)
    try:
        weight, bias = _own_parameters(model, name, layer)
    except LastLayerError:
        return None  # it may be another layer, and else the reason is said
    if bias is not layer.bias:
        return None
    constant = weight.new_zeros(len(weight)) if bias is None else bias.detach().clone()
    return LastLayer(name, weight.shape[1], len(weight), bias is not None, 1.0, 1.0, in_float64(constant))


def _check_that_it_runs(model: nn.Module, batch: Batch) -> None:
    probe = batch.rows(slice(0, _FEW_ROWS))
    try:
        with torch.no_grad():
            f = model(*probe.args, **probe.kwargs)
    except Exception as error:
        raise ModelError(f"The model does not run on the first rows of {batch.where}: {error}") from error
    finite_rows("output", probe.where, f)


def _requested_name(model: nn.Module, requested: str | nn.Module) -> str:
    layers = dict(model.named_modules(remove_duplicate=False))
    if isinstance(requested, str):
        if requested in layers:
            return requested
        linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
        raise LastLayerError(
            f"The model has no module '{requested}'. Its linear layers: {', '.join(linear) or 'none'}."
        )
    for name, layer in layers.items():
        if layer is requested:
            return name
    raise LastLayerError(f"last_layer is a {type(requested).__name__} that is not part of the model.")


def _linear_layers_run(model: nn.Module, batch: Batch, plain: bool) -> list[str]:
    """Names of the linear layers in the order in which a forward pass runs them."""
    if plain:
        return [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    order: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda _layer, _args, name=name: order.append(name))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        with torch.no_grad():
            try:
                few = batch.rows(slice(0, _FEW_ROWS))
                model(*few.args, **few.kwargs)
            except Exception:  # of the whole batch, or the model's own error
                order.clear()
                model(*batch.args, **batch.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(reversed(order)))[::-1]


def _checked(model: nn.Module, name: str, batch: Batch) -> LastLayer:
    """The layer, if its gradient is what a last layer's must be; else an error that says why not."""
    layer = model.get_submodule(name)
    weight, bias = _own_parameters(model, name, layer)
    probe = batch.rows(slice(0, _PROBE_ROWS)) if batch.size > _PROBE_ROWS else batch
    leaves = {f"{name}.weight".lstrip("."): weight.detach().clone().requires_grad_()}
    if bias is not None:
        leaves[f"{name}.bias".lstrip(".")] = bias.detach().clone().requires_grad_()

    with recorded_inputs([layer]) as (inputs,), torch.enable_grad():
        try:
            raw = call_with(model, leaves, probe.args, probe.kwargs)
        except Exception as error:
            raise ModelError(
                f"The model runs on {batch.where} as a whole but not on its first {probe.size} rows: {error}. Examples "
                "must be independent rows of every input whose first dimension is the batch."
            ) from error
    f = read_output(raw, probe.size)
    finite_rows("output", probe.where, f)
    if len(inputs) != 1:
        raise LastLayerError(
            f"'{name}' is run {len(inputs)} times in one forward pass; a last layer must be run exactly once."
        )
    given, num_inputs = inputs[0].detach(), weight.shape[1]
    if given.numel() != probe.size * num_inputs:
        raise LastLayerError(f"'{name}' {_positions(given, probe.size)}")
    if f.shape[1] != weight.shape[0]:
        raise LastLayerError(
            f"'{name}' has {weight.shape[0]} outputs but the model returns {f.shape[1]} values per example."
        )
    a = given.reshape(probe.size, num_inputs)
    alpha, beta = _factors(name, a, f, tuple(leaves.values()))
    rest = in_float64(f.detach()) - _linear_part(alpha, weight, a)
    found = LastLayer(name, num_inputs, len(weight), bias is not None, alpha, beta, constant=rest.mean(dim=0))
    check_output(found, layer, a, f, probe.where)
    return found


def _own_parameters(model: nn.Module, name: str, layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    own = dict(layer.named_parameters())
    weight, bias = own.get("weight"), own.get("bias")
    if weight is None or weight.ndim != 2 or set(own) - {"weight", "bias"}:
        raise LastLayerError(
            f"'{name}' ({type(layer).__name__}) has the parameters {sorted(own) or 'none'}; a last layer has a matrix "
            "'weight' and perhaps a 'bias'. Merge adapters and remove parametrisations of the last layer first; a "
            "1 × 1 convolution can be an nn.Linear after Flatten."
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    for other, parameter in model.named_parameters(remove_duplicate=False):
        owner = modules.get(other.rpartition(".")[0])
        if owner is not layer and (parameter is weight or parameter is bias):
            raise LastLayerError(
                f"'{name}' shares its weights with '{other}' (a tied head), so they act in two places. Give the last "
                "layer a copy of its own: layer.weight = nn.Parameter(layer.weight.detach().clone())."
            )
    return weight, bias


def _factors(name: str, a: Tensor, f: Tensor, leaves: tuple[Tensor, ...]) -> tuple[float, float]:
    """α and β from the gradient of Σ R∘f, checked to explain it for all examples and outputs at once."""
    probe = torch.randn(f.shape, generator=child_generator(0, "probe"), dtype=torch.float64)
    R = probe.to(device=f.device, dtype=f.dtype)
    if not f.requires_grad:
        raise LastLayerError(f"The model's output does not depend differentiably on '{name}'.")
    gradients = torch.autograd.grad(f, leaves, grad_outputs=R, allow_unused=True)
    factors = []
    expected = [in_float64(R).mT @ in_float64(a), in_float64(R).sum(dim=0)]
    for part, gradient, target in zip(("weight", "bias"), gradients, expected, strict=False):
        if gradient is None:
            raise LastLayerError(f"The model's output does not depend on the {part} of '{name}'.")
        got = in_float64(gradient)
        size = target.square().sum()
        factor = float((got * target).sum() / size) if size > 0 else 1.0
        if not same_up_to_rounding(got, factor * target, coarsest(f.dtype, a.dtype, leaves[0].dtype)):
            raise LastLayerError(
                f"The output is not '{name}' up to a constant factor: its gradient by the {part} differs from "
                "the features' by more than rounding. Is something applied after it, or is it used elsewhere too?"
            )
        eps = torch.finfo(coarsest(f.dtype, a.dtype, leaves[0].dtype)).eps
        factors.append(1.0 if abs(factor - 1) <= 4 * eps else factor)
    return factors[0], factors[1] if len(factors) > 1 else 1.0


def _linear_part(alpha: float, weight: Tensor, a: Tensor) -> Tensor:
    """α W a in float64."""  # (n, c)
    return alpha * (in_float64(a.detach()) @ in_float64(weight.detach()).mT)


def check_output(last_layer: LastLayer, layer: nn.Module, a: Tensor, f: Tensor, where: str) -> None:
    """f = α W a + constant on these examples: nothing that depends on the input follows the layer."""
    weight = layer.get_parameter("weight")
    linear = _linear_part(last_layer.weight_factor, weight, a[:, : last_layer.num_inputs])
    linear = linear + last_layer.constant.to(linear.device)
    precision = coarsest(f.dtype, a.dtype, weight.dtype)
    if same_outputs(f, linear, precision):
        return
    terms = _linear_part(abs(last_layer.weight_factor), weight.abs(), a[:, : last_layer.num_inputs].abs())
    terms = terms + last_layer.constant.to(linear.device).abs()
    if not same_outputs(f, linear, precision, terms=terms):
        gap = (in_float64(f.detach()) - linear).abs().max().item()
        raise LastLayerError(
            f"On {where} the model's output differs from its last layer '{last_layer.name}' by up to {gap:.3g} "
            "in a way that depends on the input: something follows or by-passes that layer "
            "(a ReLU, a clamp, a skip connection). Wrap the model so that it returns the last layer's output."
        )
