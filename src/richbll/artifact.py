"""Saving and loading: safetensors with JSON in its header. No pickle, no training data, no model weights."""

import math
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from richbll import files
from richbll._version import __version__
from richbll.core.moments import Moments
from richbll.core.posterior import SpectralPosterior
from richbll.core.projection import Projection, Spectrum
from richbll.errors import ArtifactError, OptionError, RichBLLWarning
from richbll.fitted import Fitted
from richbll.likelihoods.conformal import Calibration
from richbll.network.fingerprint import add_tensor, new_digest
from richbll.network.last_layer import LastLayer
from richbll.network.taps import Tap
from richbll.precision import float64_device
from richbll.solvers.solution import Additive

FORMAT = 2
_KEY = "richbll"


def architecture(model: nn.Module) -> dict[str, str]:
    """The fingerprint: every module's class and every tensor's shape, by name."""
    modules = {f"module {name}": type(module).__name__ for name, module in model.named_modules()}
    tensors = {f"tensor {name}": str(tuple(tensor.shape)) for name, tensor in _state(model).items()}
    return modules | tensors


def _state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state; extra state of another kind is left out."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def weights_digest(model: nn.Module) -> str:
    """A hash of all values of the model's state."""
    digest = new_digest()
    for name, tensor in _state(model).items():
        add_tensor(digest, name, tensor)
    return str(digest.hexdigest())


@dataclass(frozen=True)
class Saved:
    """What a file holds: a posterior, how it came about, and which model it belongs to."""

    fitted: Fitted
    options: dict[str, Any]
    calibration: Calibration | None
    architecture: dict[str, str]
    weights: str


def write(
    path: str | os.PathLike[str],
    fitted: Fitted,
    model: nn.Module,
    options: dict[str, Any],
    calibration: Calibration | None = None,
    moments: bool = False,
) -> None:
    """Write to a file, with or without the moments that add up with other data's."""
    if moments and (fitted.cross is None or fitted.additive is None):
        raise OptionError(
            "save(moments=True) needs moments that add up, which the exact solver, solvers of one's own and transforms "
            'per class do not keep. Fit with RichBLL(…, solver="cross"), or "sketch" where that does not fit.'
        )
    write_saved(path, Saved(fitted, options, calibration, architecture(model), weights_digest(model)), moments)


def write_saved(path: str | os.PathLike[str], saved: Saved, moments: bool) -> None:
    """An interrupted save leaves the old file whole."""
    fitted, calibration = saved.fitted, saved.calibration
    header = {
        "format": FORMAT,
        "version": __version__,
        "torch": torch.__version__,
        "options": saved.options,
        "last_layer": {
            "name": fitted.last_layer.name,
            "num_inputs": fitted.last_layer.num_inputs,
            "num_outputs": fitted.last_layer.num_outputs,
            "has_bias": fitted.last_layer.has_bias,
            "weight_factor": fitted.last_layer.weight_factor,
            "bias_factor": fitted.last_layer.bias_factor,
            "taps": [[tap.name, tap.width, tap.channels_first] for tap in fitted.last_layer.taps],
        },
        "parameter_names": list(fitted.parameter_names),
        "num_rows": fitted.moments.num_rows,
        "num_data": fitted.moments.num_data,
        "num_added": fitted.num_added,
        "ranks": [projection.spectrum.rank for projection in fitted.projections],
        "num_alive": [projection.spectrum.num_alive for projection in fitted.projections],
        "calibration": None if calibration is None else [calibration.kind, calibration.asked],
        "ridge": fitted.ridge,
        "additive": asdict(fitted.additive) if moments and fitted.additive is not None else None,
        "architecture": saved.architecture,
        "weights": saved.weights,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in fitted.tensors(moments).items()}
    if calibration is not None:
        tensors["calibration"] = calibration.sorted_scores.detach().cpu().contiguous()
    files.write(Path(path), tensors, _KEY, header, ArtifactError)


def read(
    path: str | os.PathLike[str], model: nn.Module, device: str | torch.device
) -> tuple[Fitted, dict[str, Any], Calibration | None]:
    """The fitted value, the estimator's options and its calibration, checked against the model."""
    saved = read_saved(path, device)
    _check_architecture(path, saved.architecture, architecture(model))
    _check_layers(path, saved.fitted, model)
    if saved.weights != weights_digest(model):
        warnings.warn(
            f"{path} was fitted to other weights (or another dtype) of this architecture: its uncertainties "
            "belong to those. Load the weights that it was fitted to, or fit again.",
            RichBLLWarning,
            stacklevel=3,
        )
    return saved.fitted, saved.options, saved.calibration


def read_saved(path: str | os.PathLike[str], device: str | torch.device) -> Saved:
    """What a file holds, checked as far as that is possible without a model."""
    with files.reading(Path(path), _KEY, ArtifactError) as (header, file):
        if header.get("format") != FORMAT:
            raise ArtifactError(
                f"{path} has format {header.get('format')!r}; this version of richbll reads format {FORMAT}."
            )
        there = float64_device(torch.device(device))
        tensors = {name: file.get_tensor(name).to(there, copy=True) for name in file.keys()}  # noqa: SIM118
    try:
        fitted, options, calibration = _rebuilt(header, tensors)
        saved = Saved(fitted, options, calibration, header["architecture"], str(header.get("weights")))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"{path}: the header or a tensor is missing or malformed ({error!r}).") from error
    if not isinstance(saved.architecture, dict):
        raise ArtifactError(f"{path}: the fingerprint of the architecture is missing.")
    _check_shapes(path, fitted)
    _check_ranges(path, fitted)
    _check_calibration(path, saved)
    return saved


def _rebuilt(header: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Fitted, dict[str, Any], Calibration | None]:
    layer = header["last_layer"]
    last_layer = LastLayer(
        name=str(layer["name"]),
        num_inputs=int(layer["num_inputs"]),
        num_outputs=int(layer["num_outputs"]),
        has_bias=bool(layer["has_bias"]),
        weight_factor=float(layer["weight_factor"]),
        bias_factor=float(layer["bias_factor"]),
        constant=tensors["constant"],
        taps=tuple(Tap(str(name), int(width), bool(first)) for name, width, first in layer["taps"]),
    )
    moments = Moments(
        num_rows=int(header["num_rows"]),
        num_data=int(header["num_data"]),
        gram_projection=tensors["gram_projection"],
        gram_weighted=tensors.get("gram_weighted"),
        residual_sq=tensors.get("residual_sq"),
    )
    projections = tuple(
        Projection(
            Spectrum(tensors[f"Q.{number}"], tensors[f"s.{number}"], int(rank), int(alive)),
            tensors[f"H.{number}"],
            tensors[f"trace_m.{number}"],
        )
        for number, (rank, alive) in enumerate(zip(header["ranks"], header["num_alive"], strict=True))
    )
    kept, additive = header["calibration"], header.get("additive")
    fitted = Fitted(
        last_layer=last_layer,
        parameter_names=tuple(map(str, header["parameter_names"])),
        moments=moments,
        projections=projections,
        ridge=float(header["ridge"]),
        root=tensors["root"],
        posterior=SpectralPosterior(tensors["W"], tensors["eigenvalues"]),
        noise_variance=tensors["noise_variance"],
        prior_variance=tensors["prior_variance"],
        pull=tensors.get("pull"),
        num_added=int(header["num_added"]),
        cross=None if additive is None else tensors["cross"],
        additive=None if additive is None else Additive(**additive),
    )
    calibration = None if kept is None else Calibration(str(kept[0]), tensors["calibration"], str(kept[1]))
    return fitted, dict(header["options"]), calibration


def _check_shapes(path: str | os.PathLike[str], fitted: Fitted) -> None:
    r, c, g = fitted.last_layer.num_features, fitted.last_layer.num_outputs, len(fitted.noise_variance)
    expected: dict[str, tuple[int, ...]] = {
        "gram_projection": (r, r),
        "root": (len(fitted.root), r, r),
        "W": (g, r, r),
        "eigenvalues": (g, r),
        "noise_variance": (g,),
        "prior_variance": (g,),
        "constant": (c,),
        "residual_sq": (c,),
        "pull": (g, r),
    }
    if g not in (1, c) or len(fitted.root) not in (1, g):
        raise ArtifactError(f"{path}: {g} posteriors and {len(fitted.root)} data terms for {c} outputs.")
    for number, projection in enumerate(fitted.projections):
        rank, transforms = projection.spectrum.rank, len(projection.trace_m)
        expected |= {f"Q.{number}": (r, r), f"s.{number}": (r,), f"trace_m.{number}": (transforms,)}
        expected[f"H.{number}"] = (transforms, rank, rank)
    if fitted.moments.gram_weighted is not None:
        expected["gram_weighted"] = (g if len(fitted.moments.gram_weighted) == g else 1, r, r)
    if fitted.cross is not None:
        expected["cross"] = (len(fitted.projections[0].trace_m), fitted.cross.shape[1], r)
    for name, tensor in fitted.tensors(moments=True).items():
        if tuple(tensor.shape) != expected[name] or tensor.dtype != torch.float64:
            raise ArtifactError(
                f"{path}: '{name}' has shape {tuple(tensor.shape)} and {tensor.dtype}; "
                f"expected {expected[name]} and torch.float64."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ArtifactError(f"{path}: '{name}' holds NaN or Inf.")


def _check_layers(path: str | os.PathLike[str], fitted: Fitted, model: nn.Module) -> None:
    layer = fitted.last_layer
    missing = {layer.name, *(tap.name for tap in layer.taps)} - dict(model.named_modules()).keys()
    if missing:
        raise ArtifactError(f"{path}: malformed, as the model has no module named {', '.join(sorted(missing))}.")
    unknown = set(fitted.parameter_names) - dict(model.named_parameters(remove_duplicate=False)).keys()
    if unknown:
        raise ArtifactError(f"{path}: malformed, as the model has no parameter named {', '.join(sorted(unknown))}.")
    weight, bias = (getattr(model.get_submodule(layer.name), name, None) for name in ("weight", "bias"))
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else None
    if shape != (layer.num_outputs, layer.num_inputs) or isinstance(bias, Tensor) != layer.has_bias:
        raise ArtifactError(
            f"{path}: malformed, as the weight of {layer.name!r} has shape {shape} here and not "
            f"{(layer.num_outputs, layer.num_inputs)}, or as only one of both has a bias."
        )


def _check_calibration(path: str | os.PathLike[str], saved: Saved) -> None:
    """Scores that `conformalize` can have left."""
    if saved.calibration is None:
        return
    kind, scores = saved.calibration.kind, saved.calibration.sorted_scores
    likelihood, c = saved.options.get("likelihood"), saved.fitted.last_layer.num_outputs
    kinds = {"regression": ("interval",), "classification": ("lac", "aps")}.get(str(likelihood), ())
    is_right = scores.dtype == torch.float64 and len(scores) > 0
    is_right &= tuple(scores.shape[1:]) == ((c,) if kind == "interval" else ())
    if kind not in kinds or not is_right or not bool((scores >= 0).all() & (scores.diff(dim=0) >= 0).all()):
        raise ArtifactError(
            f"{path}: malformed, as calibration scores of {likelihood} must be float64, sorted and not negative; these "
            f"are {kind!r} of shape {tuple(scores.shape)} and {scores.dtype}."
        )
    if not bool(torch.isfinite(scores).all()):
        raise ArtifactError(f"{path}: the calibration holds NaN or Inf.")


def _check_ranges(path: str | os.PathLike[str], fitted: Fitted) -> None:
    """Numbers that no fit leaves behind."""
    layer, moments = fitted.last_layer, fitted.moments
    spectra = [projection.spectrum for projection in fitted.projections]
    wrong = {
        "weight_factor": not math.isfinite(layer.weight_factor) or layer.weight_factor == 0,
        "bias_factor": not math.isfinite(layer.bias_factor),
        "num_rows": moments.num_rows < 1,
        "num_data": moments.num_data < moments.num_rows,
        "num_added": fitted.num_added < 0,
        "ridge": not 0 <= fitted.ridge < math.inf,
        "ranks": any(not 0 <= s.rank <= s.num_alive <= layer.num_features for s in spectra),
        "noise_variance": bool((fitted.noise_variance <= 0).any()),
        "prior_variance": bool((fitted.prior_variance <= 0).any()),
        "eigenvalues": bool((fitted.posterior.eigenvalues < 0).any()),
    }
    if any(wrong.values()):
        names = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
        raise ArtifactError(f"{path}: malformed, as these are out of range: {names}.")


def _check_architecture(path: str | os.PathLike[str], saved: dict[str, str], given: dict[str, str]) -> None:
    differences = [
        f"{name}: saved {saved.get(name, 'absent')}, this model {given.get(name, 'absent')}"
        for name in sorted(saved.keys() | given.keys())
        if saved.get(name) != given.get(name)
    ]
    if differences:
        shown = "; ".join(differences[:3]) + (f"; and {len(differences) - 3} more" if len(differences) > 3 else "")
        raise ArtifactError(f"{path} belongs to another architecture. {shown}.")
