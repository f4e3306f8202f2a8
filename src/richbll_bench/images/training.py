"""Training a classifier of images: AdamW in μP, crop and flip, the best epoch by validation accuracy, resumable.

The rate falls along a half cosine to 0 over all steps. After every epoch all that training needs to go on is written
beside the place of the final weights, whole or not at all, so that a run that is killed loses at most one epoch. Random
numbers belong to (seed, epoch): a run that goes on ends with the weights that it would have had.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from richbll_bench.images.augmentation import augmented
from richbll_bench.images.cnn import parameter_groups
from richbll_bench.images.precision import dtype_of
from richbll_bench.images.reading import Images
from richbll_bench.images.split import Scaling, Split, batches
from richbll_bench.regression.seeds import derived_seed, random_numbers
from richbll_bench.replacing import replacing

State = dict[str, Tensor]
Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]  # network, inputs, labels → loss
EVALUATION_BATCH = 256  # the paper's


@dataclass(frozen=True)
class Recipe:
    """The paper's: AdamW, rate 1e-3 at base width, no weight decay, batches of 128."""

    epochs: int
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    precision: str = "auto"


@dataclass(frozen=True)
class Best:
    """The weights of the best epoch, and what they achieve on the validation images."""

    state: State
    epoch: int  # counted from 1; 0 is the network before training
    accuracy: float
    seconds: float = 0.0  # of the processor, of all of training


def negative_log_likelihood(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean of −log softmax(f(x))_y."""  # ()
    return cross_entropy(model(x).float(), y)


def device() -> torch.device:
    """Where networks are trained: a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(
    model: nn.Module,
    data: Split,
    recipe: Recipe,
    width: int,
    seed: int,
    *,
    objective: Objective = negative_log_likelihood,
    keep: Path | None = None,
    progress: bool | None = None,
) -> Best:
    """Train in place and return the best epoch's weights; with `keep`, go on from what a killed run left there."""
    place, dtype = device(), dtype_of(recipe.precision)
    model.to(place)
    optimizer = torch.optim.AdamW(parameter_groups(model, recipe.learning_rate, recipe.weight_decay, width))
    steps = recipe.epochs * -(-len(data.train) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
    began = time.process_time()

    def judged(epoch: int) -> float:
        with random_numbers(seed, "validation", epoch):  # for networks that draw
            return accuracy(model, data.validation, data.scaling, dtype)

    best = Best(copied(model), 0, judged(0))
    first = 0
    if keep is not None and keep.is_file():
        kept = torch.load(keep, map_location=place, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        best, first = Best(**kept["best"]), kept["epochs"]
        began -= kept["seconds"]
    disable = None if progress is None else not progress
    for epoch in tqdm(range(first, recipe.epochs), desc=f"width {width}, seed {seed}", unit="epoch", disable=disable):
        _epoch(model, data, recipe, derived_seed(seed, "epoch", epoch), optimizer, schedule, objective, dtype)
        found = judged(epoch + 1)
        if found > best.accuracy:
            best = Best(copied(model), epoch + 1, found)
        if keep is not None:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            reached = {"best": vars(best), "epochs": epoch + 1, "seconds": time.process_time() - began}
            _write(keep, states | {"schedule": schedule.state_dict()} | reached)
    model.load_state_dict(best.state)
    model.cpu().eval()
    seconds = time.process_time() - began
    return Best({name: tensor.cpu() for name, tensor in best.state.items()}, best.epoch, best.accuracy, seconds)


def _epoch(
    model: nn.Module,
    data: Split,
    recipe: Recipe,
    seed: int,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    objective: Objective,
    dtype: torch.dtype | None,
) -> None:
    place = device()
    model.train()
    with random_numbers(seed, "dropout"):
        for pixels, labels in shuffled(data.train, recipe.batch_size, seed):
            x, y = data.scaling(pixels).to(place), labels.to(place)
            with torch.autocast(place.type, dtype, enabled=dtype is not None):
                loss = objective(model, x, y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


def shuffled(images: Images, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Bytes and labels in random order, cropped and flipped; a last batch of one image is left out, for its norm."""
    generator = torch.Generator().manual_seed(seed)
    for rows in torch.split(torch.randperm(len(images), generator=generator), batch_size):
        if len(rows) > 1:
            yield augmented(images.pixels[rows], generator), images.labels[rows]


def accuracy(model: nn.Module, images: Images, scaling: Scaling, dtype: torch.dtype | None = None) -> float:
    """The share of images whose class is predicted, in eval mode."""
    place, right = device(), 0
    model.eval()
    with torch.inference_mode(), torch.autocast(place.type, dtype, enabled=dtype is not None):
        for x, y in batches(images, scaling, EVALUATION_BATCH):
            right += int((model(x.to(place)).argmax(dim=1).cpu() == y).sum())
    return right / max(1, len(images))


def copied(model: nn.Module) -> State:
    """All weights and buffers as they are now."""
    return copy.deepcopy(model.state_dict())


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        torch.save(content, temporary)
