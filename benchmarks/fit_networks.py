"""The networks whose fit is timed: briefly trained on synthetic data, with data to fit and held-out inputs.

Trained weights and the float64 truth are kept in benchmarks/.cache, so that every row, whenever it is measured, sees
the same network.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from networks import cnn, mlp, transformer
from recording import cache_folder
from torch import Tensor, nn
from truth import Truth, last_linear, true_posterior

RELATIVE_RIDGE = 1e-4  # times the largest eigenvalue of Φ^rᵀΦ^r: the same for every network and method
_NOISE_OF_DATA = 0.3


@dataclass(frozen=True)
class Spec:
    """How a network, its data and its training are made."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], Tensor]
    num_rows: int
    batch_size: int
    num_new: int
    steps: int
    by_kernel: bool = False  # how the truth is computed
    gp_batch_size: int | None = None  # for laplace-torch's Jacobians, two of which it holds at a time
    gp_subset: int | None = None  # rows for its function-space mode, where all would take a quarter of an hour


def vectors(num_inputs: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda n, g: torch.randn(n, num_inputs, generator=g)


def images(n: int, g: torch.Generator) -> Tensor:
    """Coarse fields with fine noise."""
    coarse = torch.randn(n, 3, 4, 4, generator=g)
    smooth = nn.functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    return smooth + 0.5 * torch.randn(n, 3, 32, 32, generator=g)


def sequences(n: int, g: torch.Generator) -> Tensor:
    """Tokens with something in common."""
    return torch.randn(n, 1, 128, generator=g) + torch.randn(n, 32, 128, generator=g)


SPECS: dict[str, Spec] = {
    "MLP 8-50-50-1": Spec(lambda: mlp(8, 50, 1).model, vectors(8), 1000, 250, 1024, 300),
    "MLP 100-1024-1024-1": Spec(
        lambda: mlp(100, 1024, 1).model,
        vectors(100),
        4096,
        512,
        256,
        100,
        by_kernel=True,
        gp_batch_size=128,
        gp_subset=1024,
    ),
    "CNN width 16": Spec(lambda: cnn(16, 1).model, images, 512, 64, 64, 60),
    "CNN width 32": Spec(lambda: cnn(32, 1).model, images, 512, 64, 64, 60),
    "CNN width 64": Spec(lambda: cnn(64, 1).model, images, 512, 64, 64, 40),
    "transformer d 128": Spec(
        lambda: transformer(1).model, sequences, 512, 64, 64, 60, gp_batch_size=32, gp_subset=128
    ),
}
# The same kinds in seconds: to see that everything runs.
QUICK: dict[str, Spec] = {
    "MLP 8-50-50-1": Spec(lambda: mlp(8, 50, 1).model, vectors(8), 500, 500, 64, 30),
    "MLP 100-1024-1024-1": Spec(lambda: mlp(100, 128, 1).model, vectors(100), 512, 256, 64, 30, by_kernel=True),
    "CNN width 16": Spec(lambda: cnn(4, 1).model, images, 64, 32, 16, 5),
    "CNN width 32": Spec(lambda: cnn(8, 1).model, images, 64, 32, 16, 5),
    "CNN width 64": Spec(lambda: cnn(16, 1).model, images, 64, 32, 16, 5),
    "transformer d 128": Spec(lambda: transformer(1).model, sequences, 64, 32, 16, 5),
}


@dataclass(frozen=True)
class Task:
    """A trained network, what it is fitted on, and where it is asked."""

    name: str
    spec: Spec
    model: nn.Module
    x: Tensor
    y: Tensor  # (N, 1)
    x_new: Tensor
    y_new: Tensor
    stem: str  # of the files that are kept about it

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The data as `fit` and the yard read it."""
        size = self.spec.batch_size
        return list(zip(torch.split(self.x, size), torch.split(self.y, size), strict=True))

    @property
    def r(self) -> int:
        """Last-layer features, the bias among them."""
        return last_linear(self.model)[1].in_features + 1

    @property
    def m(self) -> int:
        """The other parameters."""
        return sum(p.numel() for p in self.model.parameters()) - self.r

    @cached_property
    def noise_variance(self) -> float:
        """σ²: the mean squared error at held-out inputs, as the paper takes it."""
        with torch.no_grad():
            return float((self.model(self.x_new) - self.y_new).double().square().mean())

    @cached_property
    def truth(self) -> Truth:
        """From the cache, or computed and put there."""
        path = cache_folder() / f"{self.stem}.{self._fingerprint()}.truth.pt"
        if not path.exists():
            print(f"computing the float64 truth of {self.name} ...", flush=True)
            found = true_posterior(
                self.model, self.x, self.x_new, self.noise_variance, RELATIVE_RIDGE, by_kernel=self.spec.by_kernel
            )
            torch.save(vars(found), path)
        return Truth(**torch.load(path))

    def first_rows(self, count: int) -> "Task":
        """The same network and truth with less to read: to rehearse on."""
        part = replace(self, x=self.x[:count], y=self.y[:count])
        part.__dict__["truth"] = self.truth
        return part

    def _fingerprint(self) -> str:
        """Of everything that the truth depends on."""
        told = hashlib.sha256(f"{RELATIVE_RIDGE}".encode())
        for tensor in (*self.model.state_dict().values(), self.x, self.x_new, self.y_new):
            told.update(tensor.contiguous().numpy().tobytes())
        return told.hexdigest()[:12]


def target(x: Tensor, g: torch.Generator) -> Tensor:
    """A curved function of an input's mean over positions or of its coarse structure, with noise."""
    if x.dim() == 4:
        x = nn.functional.adaptive_avg_pool2d(x, 4).flatten(1) * 2
    elif x.dim() == 3:
        x = x.mean(dim=1)
    along, across = torch.randn(2, x.shape[1], generator=g) / x.shape[1] ** 0.5
    clean = torch.sin(2 * x @ along) + 0.5 * (x @ across).square()
    clean = (clean - clean.mean()) / clean.std()
    return (clean + _NOISE_OF_DATA * torch.randn(len(x), generator=g)).unsqueeze(1)


def trained(model: nn.Module, x: Tensor, y: Tensor, steps: int, g: torch.Generator) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(x), (64,), generator=g)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(model(x[rows]), y[rows]))
        optimizer.step()
    optimizer.zero_grad()  # leaves no .grad behind
    return model.eval()


def task(name: str, quick: bool = False) -> Task:
    """The network by name, trained now or before."""
    spec = (QUICK if quick else SPECS)[name]
    g = torch.Generator().manual_seed(0)
    x = spec.inputs(spec.num_rows + spec.num_new, g)
    y = target(x, g)
    torch.manual_seed(0)
    model = spec.make()
    stem = (("quick " if quick else "") + name).replace(" ", "_")
    path = cache_folder() / f"{stem}.weights.pt"
    N = spec.num_rows
    if not path.exists():
        print(f"training {name} ...", flush=True)
        torch.save(trained(model, x[:N], y[:N], spec.steps, g).state_dict(), path)
    model.load_state_dict(torch.load(path))
    return Task(name, spec, model.eval(), x[:N], y[:N], x[N:], y[N:], stem)
