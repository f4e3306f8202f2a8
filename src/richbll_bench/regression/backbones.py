"""Trained backbones of a data set, by seed: model selection and retraining as in the paper, kept in the cache.

Every network is trained on the training rows and looked at every ten epochs; with the number of epochs that is best on
the validation rows it is trained again from its first weights, on training and validation rows together.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from richbll_bench import datasets
from richbll_bench.data.folders import cache_folder
from richbll_bench.regression.network import backbone, rate
from richbll_bench.regression.split import Split, split
from richbll_bench.regression.together import Recipe, Selected, State, Together, select, squared_error, train_for

_VERSION = 1  # of the training below: a change makes what is kept worthless


@dataclass(frozen=True)
class Setting:
    """A data set and how networks are trained on it."""

    dataset: str
    recipe: Recipe
    num_rows: int | None = None  # of all rows, for tiny runs
    num_seen: int | None = None  # of the training and validation rows; inputs are scaled by all of them
    width: int = 50


@dataclass(frozen=True)
class Trained:
    """The backbone of one seed."""

    seed: int
    split: Split
    selected: nn.Module  # trained on the training rows, for choosing what is left to choose
    model: nn.Module  # trained on training and validation rows
    epochs: int
    validation_mse: float

    @property
    def noise_variance(self) -> float:
        """σ² as the paper takes it."""
        return self.validation_mse


# Epochs and batch sizes of the paper's appendix.
RECIPES = {
    "boston": Recipe(3000, 32),
    "concrete": Recipe(3000, 32),
    "energy": Recipe(2000, 32),
    "power": Recipe(3000, 256),
    "wine_red": Recipe(1000, 32),
}
TINY_ROWS, TINY_EPOCHS = 120, 20


def setting(dataset: str, tiny: bool) -> Setting:
    """The paper's, or one for seconds; other data sets are trained like Boston."""
    recipe = RECIPES.get(dataset, RECIPES["boston"])
    return Setting(dataset, Recipe(TINY_EPOCHS, 32), TINY_ROWS) if tiny else Setting(dataset, recipe)


def splits_of(wanted: Setting, seeds: Sequence[int]) -> list[Split]:
    """The rows of every seed."""
    examples = datasets.load(wanted.dataset)
    parts = [split(examples, seed, wanted.num_rows) for seed in seeds]
    return parts if wanted.num_seen is None else [part.limited(wanted.num_seen) for part in parts]


def stacked(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all seeds as one tensor each."""
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])


def trained_backbones(wanted: Setting, seeds: Sequence[int]) -> list[Trained]:
    """From the cache, or trained now, those that are missing all together."""
    parts = dict(zip(seeds, splits_of(wanted, seeds), strict=True))
    missing = [seed for seed in seeds if not _path(wanted, seed).is_file()]
    if missing:
        for seed, found, final in zip(
            missing, *train_backbones(wanted, missing, [parts[s] for s in missing]), strict=True
        ):
            _keep(_path(wanted, seed), found, final)
    return [_load(wanted, seed, parts[seed]) for seed in seeds]


def train_backbones(
    wanted: Setting, seeds: Sequence[int], parts: Sequence[Split]
) -> tuple[list[Selected], list[State]]:
    """Networks as the validation rows have chosen them, and trained again; first weights and orders by seed."""
    num_inputs = parts[0].train[0].shape[1]

    def together() -> Together:
        networks = [backbone(num_inputs, seed, wanted.width) for seed in seeds]
        return Together(networks, squared_error, wanted.recipe, rate)

    train, validation = stacked([part.train for part in parts]), stacked([part.validation for part in parts])
    found = select(together(), seeds, train, validation, wanted.recipe)
    both = stacked([part.everything_but_test for part in parts])
    return found, train_for(together(), seeds, both, [one.epochs for one in found])


def _path(wanted: Setting, seed: int) -> Path:
    what: dict[str, Any] = asdict(wanted) | {"version": _VERSION, "sha256": datasets.declaration(wanted.dataset).sha256}
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / "backbones" / f"{wanted.dataset}-{digest}" / f"{seed}.safetensors"


def _keep(path: Path, found: Selected, final: State) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"selected.{name}": t for name, t in found.state.items()} | {f"final.{n}": t for n, t in final.items()}
    beside = path.with_suffix(".part")
    save_file(tensors, beside, metadata={"epochs": str(found.epochs), "validation_mse": repr(found.error)})
    beside.replace(path)


def _load(wanted: Setting, seed: int, part: Split) -> Trained:
    from safetensors import safe_open

    path = _path(wanted, seed)
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        about = file.metadata()
    models = []
    for kind in ("selected", "final"):
        model = backbone(part.train[0].shape[1], seed, wanted.width)
        model.load_state_dict({name.split(".", 1)[1]: t for name, t in tensors.items() if name.startswith(f"{kind}.")})
        models.append(model.eval())
    return Trained(seed, part, models[0], models[1], int(about["epochs"]), float(about["validation_mse"]))
