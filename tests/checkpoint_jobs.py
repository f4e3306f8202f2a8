"""Fits to be killed: run in processes of their own by test_checkpoint.py."""

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from richbll import RichBLL, files

NUM_BATCHES = 6


def mlp(c: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, c))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.unsqueeze(1).expand(-1, 3, -1))[0][:, -1])


def gru() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent()


def noisy(x: Tensor) -> Tensor:
    return 0.1 + x[:, :1] ** 2


# name: (model, its options, how many classes there are, or 0 for numbers)
SETUPS = {
    "exact": (mlp, {}, 0),
    "in blocks": (mlp, {"memory_budget": "300KiB", "solver": "exact"}, 0),
    "rows kept": (lambda: nn.Sequential(nn.Linear(3, 400), nn.ReLU(), nn.Linear(400, 60), nn.Linear(60, 1)), {}, 0),
    "cross": (mlp, {"solver": "cross", "noise_variance": noisy}, 0),
    "sketch": (mlp, {"solver": "sketch"}, 0),
    "general": (gru, {"noise_variance": 0.1, "basis": "all_layers"}, 0),
    "classes": (lambda: mlp(3), {"likelihood": "classification", "curvature": "ggn", "solver": "cross"}, 3),
    "subsample": (lambda: mlp(3), {"likelihood": "classification", "subsample": 600}, 3),
}


def data(classes: int = 0, rows: int = 40) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_BATCHES * rows, 3, generator=generator)
    y = x.sin().sum(1) if classes == 0 else (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return list(zip(x.split(rows), y.split(rows), strict=True))


class Deadly:
    """Batches that kill the process which reads one too many."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]], last: int | None) -> None:
        self.batches, self.last, self.num_read = batches, last, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            if self.num_read == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.num_read += 1
            yield batch


def fit(setup: str, checkpoint: Path, out: Path | None = None, last: int | None = None) -> int:
    """Fit with a checkpoint every two batches; with `last` the process dies after so many reads."""
    torch.set_num_threads(1)
    make, options, classes = SETUPS[setup]
    torch.manual_seed(0)
    model = make()
    loader = Deadly(data(classes, 300 if setup == "subsample" else 40), last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        uq = RichBLL(model, **options).fit(loader, checkpoint=checkpoint, checkpoint_every=2)
    if out is not None:
        uq.save(out)
    return loader.num_read


def fit_until_written(setup: str, checkpoint: Path, write: int, when: str) -> None:
    """The process dies in a write: when its file is "half" there, or "whole" but not renamed, or "renamed"."""
    save, flush, count = files.save_file, files._flush, [0]

    def dying_save(tensors, filename, metadata) -> None:
        save(tensors, filename, metadata=metadata)
        count[0] += 1
        if when == "half" and count[0] == write:
            os.truncate(filename, os.path.getsize(filename) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_flush(path) -> None:
        flush(path)
        if count[0] == write and Path(path).is_dir() == (when == "renamed"):
            os.kill(os.getpid(), signal.SIGKILL)

    files.save_file, files._flush = dying_save, dying_flush
    fit(setup, checkpoint)
