"""Trained networks, kept in the cache under a hash of all that they depend on: each is trained once."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from richbll_bench import image_datasets
from richbll_bench.data.folders import cache_folder
from richbll_bench.images.cnn import cnn
from richbll_bench.images.split import Split
from richbll_bench.images.training import Objective, Recipe, negative_log_likelihood, train
from richbll_bench.locking import locked
from richbll_bench.replacing import replacing

_VERSION = 1  # of the training: a change makes what is kept worthless


@dataclass(frozen=True)
class Setting:
    """A data set, how much of it, and how networks are trained on it."""

    dataset: str
    width: int
    epochs: int
    num_images: int | None = None  # of training and validation together
    num_test: int | None = None  # of the test set, and of every set of other images
    precision: str = "auto"

    @property
    def recipe(self) -> Recipe:
        """The paper's, for so many epochs."""
        return Recipe(self.epochs, precision=self.precision)


@dataclass(frozen=True)
class Trained:
    """A network with the weights of its best epoch, in eval mode."""

    model: nn.Module
    epoch: int
    validation_accuracy: float
    seconds: float  # of training it, whenever that was


def trained(
    wanted: Setting,
    data: Split,
    seed: int,
    *,
    kind: str = "cnn",
    make: Callable[[], nn.Module] | None = None,
    objective: Objective = negative_log_likelihood,
) -> Trained:
    """From the cache, or trained now; `kind` names a network that is not the plain CNN, with `make` and its loss.

    Of several processes that want the same network, one trains it and the others wait.
    """
    model = make() if make is not None else cnn(wanted.width, seed, num_classes=len(data.classes))
    path = _path(wanted, seed, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):
        if not path.is_file():
            keep = path.with_suffix(".part")
            best = train(model, data, wanted.recipe, wanted.width, seed, objective=objective, keep=keep)
            about = {"epoch": str(best.epoch), "accuracy": repr(best.accuracy)}
            about["seconds"] = repr(best.seconds)
            tensors = {name: tensor.contiguous() for name, tensor in best.state.items()}
            with replacing(path) as temporary:
                save_file(tensors, temporary, metadata=about)
            keep.unlink(missing_ok=True)
    model.load_state_dict(load_file(path))
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    return Trained(model.eval(), int(about["epoch"]), float(about["accuracy"]), float(about["seconds"]))


def _path(wanted: Setting, seed: int, kind: str) -> Path:
    """A folder of its own for every network, so that its lock stops nobody else."""
    files = image_datasets.declaration(wanted.dataset).train
    what: dict[str, Any] = asdict(wanted) | {"num_test": None, "seed": seed, "kind": kind, "version": _VERSION}
    what["sha256"] = [file.sha256 for file in files]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    name = f"{wanted.dataset}-{kind}-{wanted.width}-{digest}"
    return cache_folder() / "images" / name / f"{seed}.safetensors"
