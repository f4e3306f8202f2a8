"""Posteriors of separate jobs, added up: each job fits its part of the data, and merging needs no model."""

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from richbll import artifact, files
from richbll.artifact import Saved
from richbll.core.moments import Moments
from richbll.errors import ArtifactError, DataError, OptionError, RichBLLWarning
from richbll.fitted import Fitted
from richbll.fitting import settled_ridge
from richbll.likelihoods.gaussian import noise_from_residuals
from richbll.options import Options, checked_options
from richbll.solvers.solution import Additive
from richbll.updating import summed

_MAY_DIFFER = ("memory_budget", "seed", "noise_variance", "prior_variance")  # the last two are looked at as fitted


@dataclass(frozen=True)
class _Part:
    """A file's posterior, and what in it was chosen by hand: None where it follows from the data."""

    path: Path
    saved: Saved
    options: Options
    cross: Tensor
    additive: Additive
    ridge: float | None
    noise: Tensor | None


def merge(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """Add up posteriors that were fitted to parts of the data and written by `save(path, moments=True)`.

    The result is that of one fit on all of it; it can be loaded, updated and merged again. The files must come from the
    same model with the same options, from all rows of their data (no subsample), before any `tune`, `update` or
    `conformalize`: do these after merging. A noise that was estimated from residuals is estimated again.

    Examples:
        >>> import os, tempfile, richbll
        >>> model, x = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(200, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     jobs = [os.path.join(folder, f"{job}.safetensors") for job in range(2)]
        ...     for path, part in zip(jobs, x.split(100)):
        ...         uq = richbll.RichBLL(model, noise_variance=0.1, solver="cross").fit(part)
        ...         uq.save(path, moments=True)
        ...     richbll.merge(jobs, os.path.join(folder, "all.safetensors"))
        ...     richbll.load(os.path.join(folder, "all.safetensors"), model).num_data
        200
    """
    names = _checked_names(paths, out)
    first = _part(names[0])
    fitted = first.saved.fitted
    moments, cross, trace_m = fitted.moments, first.cross.clone(), fitted.projections[0].trace_m
    for name in names[1:]:
        part = _part(name)
        _check_same(first, part)
        moments = moments + part.saved.fitted.moments
        cross += part.cross
        trace_m = trace_m + part.saved.fitted.projections[0].trace_m
    whole = summed(fitted, moments, cross, trace_m, first.additive, first.options)
    if first.ridge is not None:
        whole = whole.with_ridge(first.ridge)
    if first.noise is None:
        sigma2 = noise_from_residuals(whole.moments, whole.posterior, whole.prior_variance)
        whole = replace(whole, noise_variance=sigma2)
    artifact.write_saved(out, replace(first.saved, fitted=whole), moments=True)


def _checked_names(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> list[Path]:
    if isinstance(paths, str | os.PathLike) or len(paths) == 0:
        raise OptionError(f"merge takes a list of files, but got {paths!r}.")
    files.check_place(Path(out), ArtifactError)
    names = [Path(path) for path in paths]
    for number, name in enumerate(names):
        if name.resolve() in [other.resolve() for other in names[:number]]:
            raise OptionError(f"{name} is given twice: its data would count twice.")
        if name.resolve() == Path(out).resolve():
            raise OptionError(f"{out} is one of the files to merge: give another name for the result.")
    return names


# ---------------------------------------------------------------------- one file


def _part(path: Path) -> _Part:
    saved = artifact.read_saved(path, "cpu")
    fitted = saved.fitted
    if fitted.cross is None or fitted.additive is None:
        raise OptionError(f"{path} holds no moments that could be added: write it by save(path, moments=True).")
    if fitted.moments.num_rows != fitted.moments.num_data:
        raise OptionError(
            f"{path} was fitted to a subsample, {fitted.moments.num_rows} rows of {fitted.moments.num_data}: parts "
            "that were thinned out differently do not add up. Fit without subsample."
        )
    if fitted.num_added or fitted.pull is not None:
        raise OptionError(f"{path} was updated after its fit: merge first, then update.")
    if saved.calibration is not None:
        raise OptionError(f"{path} is calibrated, which does not add up: merge first, then conformalize.")
    options = _options(path, saved)
    return _Part(
        path, saved, options, fitted.cross, fitted.additive, _ridge_by_hand(fitted, options), _noise(fitted, options)
    )


def _options(path: Path, saved: Saved) -> Options:
    given: dict[str, Any] = dict(saved.options)
    scales: dict[str, Any] = {"noise_variance": None, "prior_variance": saved.fitted.prior_variance}
    if given.pop("noise_is_a_function", False):
        scales["noise_variance"] = lambda x: x  # stands for the function, which is not in the file
    try:
        return checked_options(last_layer=None, parameters=None, progress=None, **given | scales)
    except (OptionError, TypeError, KeyError) as error:
        raise ArtifactError(f"{path}: the options in the header are malformed ({error}).") from error


def _ridge_by_hand(fitted: Fitted, options: Options) -> float | None:
    """A ridge that was set after the fit; None for the one that the fit settled on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        settled = settled_ridge(options, fitted.projections, fitted.moments, enriched=bool(fitted.parameter_names))
    return None if math.isclose(settled, fitted.ridge, rel_tol=1e-9) else fitted.ridge


def _noise(fitted: Fitted, options: Options) -> Tensor | None:
    """A noise that was given, tuned or set; None for one that was estimated from residuals."""
    if options.default_noise is not None or fitted.moments.residual_sq is None:
        return fitted.noise_variance
    try:
        estimated = noise_from_residuals(fitted.moments, fitted.posterior, fitted.prior_variance)
    except DataError:
        return fitted.noise_variance
    return None if torch.allclose(estimated, fitted.noise_variance, rtol=1e-9, atol=0) else fitted.noise_variance


# ---------------------------------------------------------------------- two files


def _check_same(first: _Part, other: _Part) -> None:
    """All that must agree for two posteriors to be added."""
    a, b = first.saved, other.saved
    both = f"{other.path} and {first.path}"
    if name := _differing(a.architecture, b.architecture):
        there, here = b.architecture.get(name, "absent"), a.architecture.get(name, "absent")
        raise ArtifactError(f"{both} belong to different architectures: {name} is {there} in one, {here} in the other.")
    if a.weights != b.weights:
        raise ArtifactError(f"{both} were fitted to different weights of the model: moments of the same one add up.")
    for what, mine, theirs in (
        ("last layers", _layer(a.fitted), _layer(b.fitted)),
        ("parameters", a.fitted.parameter_names, b.fitted.parameter_names),
    ):
        if mine != theirs:
            raise ArtifactError(f"{both} have different {what}: {_shown(theirs)} and {_shown(mine)}.")
    matter = [{k: v for k, v in saved.options.items() if k not in _MAY_DIFFER} for saved in (a, b)]
    if name := _differing(*matter):
        there, here = (repr(saved.options.get(name)) for saved in (b, a))
        raise OptionError(f"{both} were fitted with different options: {name}={there} and {name}={here}.")
    if first.additive != other.additive or first.cross.shape != other.cross.shape:
        raise OptionError(f"{both} keep moments of different kinds: {other.additive} and {first.additive}.")
    if _weighted(a.fitted.moments) != _weighted(b.fitted.moments):
        raise OptionError(f"{both} weigh their rows in different ways, so that their moments do not add up.")
    _check_scales(both, first, other)


def _differing(a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """The first name under which two differ."""
    return next((name for name in a | b if a.get(name) != b.get(name)), None)


def _check_scales(both: str, first: _Part, other: _Part) -> None:
    a, b = first.saved.fitted, other.saved.fitted
    alike = {
        "prior_variance": torch.equal(a.prior_variance, b.prior_variance),
        "ridge": first.ridge == other.ridge,
        "noise_variance": torch.equal(first.noise, other.noise)
        if first.noise is not None and other.noise is not None
        else first.noise is other.noise,
    }
    for name, same in alike.items():
        if not same:
            there, here = getattr(b, name), getattr(a, name)
            there, here = (v.tolist() if isinstance(v, Tensor) else v for v in (there, here))
            raise OptionError(
                f"{both} have {name} {there} and {here}, given, tuned or set by hand: give the same to all fits, or "
                "none, and tune after merging."
            )


def _layer(fitted: Fitted) -> dict[str, Any]:
    """What must agree of a last layer. Its factors are measured, so they may differ by rounding."""
    layer = fitted.last_layer
    factors = [f"{factor:.3g}" for factor in (layer.weight_factor, layer.bias_factor)]
    return {
        "name": layer.name,
        "shape": (layer.num_inputs, layer.num_outputs, layer.has_bias),
        "factors": factors,
        "taps": layer.taps,
    }


def _weighted(moments: Moments) -> object:
    return None if moments.gram_weighted is None else moments.gram_weighted.shape


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "…"
