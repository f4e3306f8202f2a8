"""A saved posterior and its model, together again."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from richbll import artifact
from richbll.errors import ArtifactError, OptionError
from richbll.estimator import RichBLL
from richbll.network.untouched import bare


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    device: str | torch.device = "cpu",
    *,
    noise_variance: Callable[..., Any] | None = None,
) -> RichBLL:
    """Read a saved posterior for the model that it was fitted to.

    A file that is truncated, of another format or of another architecture raises an `ArtifactError` that says what
    differs. A noise that was a function of x is not in the file: give it again as `noise_variance`.

    Examples:
        >>> load("nowhere.safetensors", nn.Linear(2, 1))
        Traceback (most recent call last):
        richbll.errors.ArtifactError: nowhere.safetensors: no such file.
    """
    model = bare(model)
    fitted, options, calibration = artifact.read(path, model, device)
    needs_function = bool(options.pop("noise_is_a_function", False))
    if needs_function != (noise_variance is not None):
        need = "a function of x: give it again" if needs_function else "a number, which is in the file: give none"
        raise ArtifactError(f"{path}: the noise is {need} (noise_variance=…).")
    if needs_function:
        options["noise_variance"] = noise_variance
    try:
        estimator = RichBLL(
            model,
            last_layer=fitted.last_layer.name,
            parameters=set(fitted.parameter_names).__contains__,
            **options,
        )
    except (OptionError, TypeError) as error:
        raise ArtifactError(f"{path}: the options in the header are malformed ({error}).") from error
    estimator._become(fitted)
    estimator._calibration = calibration
    return estimator
