"""What each of three processes does for `test_distributed`: fits that must equal one process's, and mishaps."""

import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from richbll import RichBLL
from richbll.distributed import Alone, ProcessGroup, using
from richbll.errors import RichBLLWarning
from richbll.solvers import exact
from tests import pretend
from tests.cases import Case, Forward, make

SIZE = 3
SHARDS = [35, 20, 5]
NUM_PADDED = 61  # cannot be divided by 2 or 3
SEED = 10

# ---------------------------------------------------------------------- models


def _rows(width: int) -> tuple[Tensor, Tensor]:
    both = torch.randn(70, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return both[:60], both[60:]


def wide(c: int) -> Case:
    """Layers so wide that for 60 rows products of examples are cheaper than gradients."""
    hidden = [part for _ in range(5) for part in (nn.Linear(100, 100), nn.Tanh())]
    model = nn.Sequential(nn.Linear(4, 100), nn.Tanh(), *hidden, nn.Linear(100, 6), nn.Tanh(), nn.Linear(6, c))
    return Case(model, str(len(model) - 1), *_rows(4))


def moody(c: int) -> Case:
    """One function by two ways: where a batch begins with a negative number, rules do not hold."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        ruled = bool(x[0, 0] > 0)
        h = m.hidden(x) if ruled else torch.einsum("ni,oi->no", x, m.hidden.weight) + m.hidden.bias
        return m.head(torch.tanh(m.small(torch.tanh(h))))

    parts = {"hidden": nn.Linear(40, 300), "small": nn.Linear(300, 6), "head": nn.Linear(6, c)}
    return Case(Forward(forward, **parts), "head", *_rows(40))


def tokens(c: int) -> Case:
    """Wide layers at every position of a sequence."""
    parts = {"words": nn.Embedding(9, 30), "hidden": nn.Linear(30, 400), "small": nn.Linear(400, 5)}

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.small(torch.tanh(m.hidden(m.words(x)))).mean(dim=1)))

    both = torch.randint(9, (70, 2), generator=torch.Generator().manual_seed(2))
    return Case(Forward(forward, **parts, head=nn.Linear(5, c)), "head", both[:60], both[60:])


def channels(c: int) -> Case:
    """Convolutions with many channels at few positions."""
    many = [nn.Conv2d(8, 30, 3, padding=1), nn.Tanh(), nn.Conv2d(30, 9, 2), nn.Tanh(), nn.Flatten()]
    start = [nn.Linear(4, 32), nn.Tanh(), nn.Unflatten(1, (8, 2, 2))]
    return Case(nn.Sequential(*start, *many, nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, c)), "10", *_rows(4))


def bare(c: int) -> Case:
    """A convolution and nothing else but the last layer."""
    parts = [nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 32, 3, padding=1, bias=False), nn.Tanh(), nn.Flatten()]
    return Case(nn.Sequential(*parts, nn.Linear(128, c)), "4", *_rows(16))


def patches(c: int) -> Case:
    """A layer at a few positions."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.small(torch.tanh(m.every(torch.tanh(m.cut(x)).unflatten(1, (3, 48)))).mean(dim=1))))

    parts = {"cut": nn.Linear(4, 144), "every": nn.Linear(48, 48), "small": nn.Linear(48, 6), "head": nn.Linear(6, c)}
    return Case(Forward(forward, **parts), "head", *_rows(4))


OWN = {"wide": wide, "moody": moody, "tokens": tokens, "channels": channels, "bare": bare, "patches": patches}

# ---------------------------------------------------------------------- fits that must equal one process's


@dataclass(frozen=True)
class Fit:
    """A model with options, to be fitted in several processes and in one."""

    name: str
    num_outputs: int
    dtype: torch.dtype = torch.float64
    options: dict[str, Any] = field(default_factory=dict)
    calls: tuple[str, ...] = ()  # of the exact solver, which must be reached
    shards: str = "uneven"
    device: str = "cpu"  # of the ranks; another one is pretended

    @property
    def id(self) -> str:
        told = [self.name, self.num_outputs, str(self.dtype)[6:], *self.options.values(), self.shards, self.device]
        return "-".join(map(str, told))

    def case(self) -> Case:
        if self.name not in OWN:
            return make(self.name, self.num_outputs, self.dtype)
        torch.manual_seed(0)
        return OWN[self.name](self.num_outputs).to(self.dtype)

    def estimator(self, case: Case) -> RichBLL:
        return RichBLL(case.model, **{"noise_variance": 0.2, "seed": SEED} | self.options)

    def batches(self, case: Case) -> list[list[Any]]:
        """What every rank reads."""
        x, c = case.train.clone(), self.num_outputs
        y = torch.randn(len(x), c, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(self.dtype)
        if self.options.get("likelihood") == "classification":
            y = torch.arange(len(x)) % c
        if self.name == "moody":
            x[:, 0] = x[:, 0].abs()
            x[{"rules on some ranks": 35, "rules at first": 48}[self.shards], 0] *= -1  # in the second shard
        pairs = zip(x.split(SHARDS), y.split(SHARDS), strict=True)
        shards = [list(zip(some.split(13), targets.split(13), strict=True)) for some, targets in pairs]
        if self.shards == "ragged":  # sequences of one or two tokens
            for rank, shard in enumerate(shards):
                shard[:] = [(some[:, : 1 + (rank + k) % 2], targets) for k, (some, targets) in enumerate(shard)]
        return shards


def _fits() -> Iterator[Fit]:
    budgets = {"mlp": 14_000, "cnn_batchnorm_groups": 100_000, "transformer_layer": 120_000}
    budgets |= {"embeddings": 15_000, "lstm": 60_000}  # too little to keep one rank's gradients
    dtypes = (torch.float64, torch.float32)
    for (name, budget), dtype in itertools.product(budgets.items(), dtypes):
        short = budget * dtype.itemsize // 2
        yield Fit(name, 3, dtype, {"solver": "exact"}, ("_read_once",))
        yield Fit(name, 3, dtype, {"solver": "exact", "memory_budget": short}, ("_read_twice",))
        yield Fit(name, 3, dtype, {"solver": "cross"})
        yield Fit(name, 3, dtype, {"solver": "exact", "likelihood": "classification"}, ("_read_once",))
        if dtype == torch.float64:
            yield Fit(name, 1, dtype, {"solver": "exact"}, ("_read_once",))
    classes = {"likelihood": "classification"}
    yield Fit("mlp", 3, options=classes | {"solver": "exact", "memory_budget": 20_000}, calls=("_read_twice",))
    yield Fit("mlp", 3, options=classes | {"solver": "cross"})
    yield Fit("mlp", 3, options=classes | {"curvature": "ggn"})
    for dtype in dtypes:
        yield Fit("wide", 2, dtype, {}, ("_read_once", "gram_energy"))
        budget = 450_000 * dtype.itemsize // 4
        yield Fit("wide", 1, dtype, {"solver": "exact", "memory_budget": budget}, ("_read_twice", "gram_energy"))
        yield Fit("mlp", 2, dtype, {"solver": "sketch"})
        yield Fit("bare", 1, dtype, {"solver": "exact"}, ("_read_once", "swap convolution"))
        yield Fit("patches", 2, dtype, {"solver": "exact"}, ("_read_once", "swap linear"))
        for c in (1, 2):
            yield Fit("channels", c, dtype, {"solver": "exact"}, ("_read_once", "swap convolution"))
    yield Fit("moody", 2, shards="rules on some ranks", calls=("_read_once",))
    yield Fit("moody", 2, shards="rules at first", calls=("_read_once", "gram_energy"))
    yield Fit("tokens", 2, shards="ragged", calls=("_read_once", "gram_energy"))
    for name, call in (
        ("wide", "gram_energy"),
        ("cnn_batchnorm_groups", "_read_once"),
        ("channels", "swap convolution"),
    ):
        for c in (1, 2):
            yield Fit(name, c, torch.float32, {"solver": "exact"}, ("_read_once", call), device="mps")
    yield Fit("mlp", 1, options={"ridge": "gcv"})
    yield Fit("mlp", 2, options={"enrich": False})
    yield Fit("mlp", 1, options={"noise_variance": None})  # from the residuals of all ranks


FITS = list(_fits())

# ---------------------------------------------------------------------- samplers and subsamples

PADDED = Fit("mlp", 3, options={"likelihood": "classification"})
SUBSAMPLES = [
    Fit("mlp", 3, options={"subsample": 20, "likelihood": "classification"}),
    Fit("mlp", 3, options={"subsample": 0.5, "likelihood": "classification"}),
    Fit("mlp", 3, options={"subsample": 0.4, "likelihood": "multilabel"}),
    Fit("mlp", 3, options={"subsample": 30, "likelihood": "multilabel"}),
]
NONE_HELD = [  # with this seed no row of the last rank is drawn
    Fit("mlp", 2, options={"subsample": 20, "solver": "exact"}),
    Fit("mlp", 2, options={"subsample": 20, "solver": "exact", "memory_budget": 8000}),
    Fit("mlp", 2, options={"subsample": 20, "solver": "cross"}),
    Fit("wide", 2, options={"subsample": 20, "solver": "exact"}),
    Fit("wide", 2, options={"subsample": 20, "solver": "exact", "memory_budget": 800_000}),
]


def padded_data(fit: Fit) -> TensorDataset:
    """A number of examples that samplers have to fill up."""
    x = torch.randn(NUM_PADDED, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(NUM_PADDED) % 3
    return TensorDataset(x, labels if fit.options["likelihood"] == "classification" else nn.functional.one_hot(labels))


def padded_loader(fit: Fit, rank: int, size: int, shuffle: bool, as_batches: bool = False) -> DataLoader:
    data = padded_data(fit)
    sampler = DistributedSampler(data, size, rank, shuffle=shuffle)
    if as_batches:
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 7, drop_last=False))
    return DataLoader(data, batch_size=7, sampler=sampler)


# ---------------------------------------------------------------------- in a process


def run(rank: int, folder: Path) -> None:
    """Everything that this rank does; what it found is in `folder`."""
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own lock is one of processes, which a dead one leaves behind
    warnings.simplefilter("ignore", RichBLLWarning)
    dist.init_process_group("gloo", f"file://{folder}/meet", timedelta(seconds=120), rank=rank, world_size=SIZE)
    found: dict[str, Any] = {fit.id: _fitted(fit, rank) for fit in FITS}
    found |= {name: part(rank) for name, part in PARTS.items()}
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    torch.save(_death(rank), folder / f"{rank} at the end.pt")
    os._exit(0)  # the group has lost a member: nothing can be tidied up


def _fitted(fit: Fit, rank: int) -> dict[str, Any]:
    case, calls = fit.case(), []
    batches = fit.batches(case)[rank]
    with _watched(calls), nullcontext() if fit.device == "cpu" else pretend.device(fit.device):
        if fit.device != "cpu":
            pretend.pretended(case.model)
        uq = fit.estimator(case).fit(batches)
        return answers(uq, case.test) | {"calls": calls}


def answers(uq: RichBLL, x: Tensor) -> dict[str, Any]:
    variance = uq.joint(x).covariance.diagonal(dim1=1, dim2=2).mT
    rows = {"num_data": uq.num_data, "subsample_size": uq.subsample_size}
    traces = torch.stack([projection.trace_m.sum() for projection in uq._state.projections])
    found = {"variance": variance, "noise": uq.noise_variance, "ridge": torch.tensor(uq.ridge), "trace": traces}
    return rows | {name: value.cpu() for name, value in found.items()}


@contextmanager
def _watched(calls: list[str]) -> Iterator[None]:
    """Take down which of the exact solver's functions are called, and what kinds of weights change hands."""
    before = {name: getattr(exact, name) for name in ("_read_once", "_read_twice", "gram_energy", "swaps")}

    def watch(name: str) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            found = before[name](*args, **options)
            calls.extend([name] if name != "swaps" else [f"swap {one.shape.kind}" for one in found])
            return found

        return watched

    try:
        for name in before:
            setattr(exact, name, watch(name))
        yield
    finally:
        for name, function in before.items():
            setattr(exact, name, function)


def _outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """The error's type and message."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, "" if isinstance(error, _WordlessError) else str(error)
    return "", ""


def _mlp(**options: Any) -> RichBLL:
    return RichBLL(make("mlp", 1, torch.float64).model, **{"noise_variance": 0.2} | options)


def _root() -> RichBLL:
    """Finite at zero, with a gradient that is not."""
    torch.manual_seed(0)
    parts = {"hidden": nn.Linear(4, 6, bias=False), "head": nn.Linear(6, 1)}
    return RichBLL(Forward(lambda m, x: m.head(m.hidden(x).abs().sqrt()), **parts).double(), noise_variance=0.2)


class _WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _block(value: object = None, error: Exception | None = None) -> None:
    with ProcessGroup().together("saying") as block:
        block.value = value
        if error is not None:
            raise error


def _swapped_root() -> tuple[RichBLL, list[Tensor]]:
    """The same with a convolution, whose factors change hands; and data."""
    torch.manual_seed(0)
    parts = {"cut": nn.Unflatten(1, (4, 2, 2)), "hidden": nn.Conv2d(4, 32, 3, padding=1, bias=False)}
    model = Forward(lambda m, x: m.head(m.hidden(m.cut(x)).abs().sqrt().flatten(1)), **parts, head=nn.Linear(128, 1))
    return RichBLL(model.double(), noise_variance=0.2, solver="exact"), list(_rows(16)[0].split(7))


def _shard(rank: int) -> list[Tensor]:
    return list(make("mlp", 1, torch.float64).train.split(SHARDS)[rank].split(13))


class Begins:
    """Data that begins anew whenever it is read."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


# ---------------------------------------------------------------------- what happens besides


def _padding(rank: int) -> dict[str, Any]:
    """Samplers of three ranks, and of two of them in a group of their own."""
    found, two = {}, dist.new_group([0, 1])
    for size, shuffle, as_batches in itertools.product((3, 2), (False, True), (False, True)):
        if rank < size:
            case = PADDED.case()
            with using(ProcessGroup(two if size == 2 else None)):
                uq = PADDED.estimator(case).fit(padded_loader(PADDED, rank, size, shuffle, as_batches))
            found[f"{size} {shuffle} {as_batches}"] = answers(uq, case.test)
    return found


def _subsamples(rank: int) -> list[dict[str, Any]]:
    found = []
    for fit in SUBSAMPLES:
        case = fit.case()
        found.append(answers(fit.estimator(case).fit(padded_loader(fit, rank, SIZE, shuffle=False)), case.test))
    return found


def _same_data(rank: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _mlp().fit(_shard(min(rank, 1)))
    return [str(warning.message) for warning in caught if warning.category is RichBLLWarning]


def _mishaps(rank: int) -> dict[str, tuple[str, str]]:
    """Errors that one rank meets, and what all of them are told."""
    mine = _shard(rank)

    def failing() -> Iterator[Tensor]:
        yield mine[0]
        raise OSError("the disk is on fire")

    def other_weights() -> RichBLL:
        uq = _mlp()
        with torch.no_grad():
            next(uq._model.parameters())[0, 0] += rank == 2
        return uq

    zero = [part * (torch.arange(len(part)) != 1).unsqueeze(1) for part in mine]
    two_rows = make("mlp", 1, torch.float64).train[:2]
    only_padding = DataLoader(two_rows, batch_size=2, sampler=DistributedSampler(two_rows, SIZE, rank))
    per_class = RichBLL(make("mlp", 3, torch.float64).model, "classification", transform="per_class")
    swapped, rows = _swapped_root()
    rows = rows[rank::SIZE]
    rows = [part * (torch.arange(len(part)) != 1).unsqueeze(1) for part in rows] if rank == 1 else rows
    calls: dict[str, Callable[[], Any]] = {
        "an error of the data": lambda: _mlp().fit(Begins(failing) if rank == 1 else mine),
        "others read for ever": lambda: _mlp(solver="cross").fit(failing() if rank == 0 else itertools.repeat(mine[0])),
        "no rows": lambda: _mlp().fit(mine if rank < 2 else []),
        "no rows but padding": lambda: _mlp().fit(only_padding),
        "not finite": lambda: _mlp().fit([part * float("nan") for part in mine] if rank == 1 else mine),
        "no finite gradient": lambda: _root().fit(zero if rank == 1 else mine),
        "no finite gradient of a weight that changes hands": lambda: swapped.fit(rows),
        "what cannot be said": lambda: _block(value=object() if rank == 1 else None),
        "an error without words": lambda: _block(error=_WordlessError() if rank == 1 else None),
        "other weights": lambda: other_weights().fit(mine),
        "other options": lambda: _mlp(ridge=float(rank)).fit(mine),
        "transform per class": lambda: per_class.fit(mine),
        "automatic subsample": lambda: _mlp(subsample="auto").fit(mine),
        "read once on one rank": lambda: _mlp().fit(iter(mine) if rank == 1 else mine),
    }
    return {name: _outcome(call) for name, call in calls.items()}


def _alone(rank: int) -> dict[str, Any]:
    """After a fit, and inside `using(Alone())`, a rank does as it likes."""
    case = make("mlp", 1, torch.float64)
    uq = _mlp().fit(_shard(rank))
    found: dict[str, Any] = {"all": uq.num_data}
    if rank == 1:
        uq.predict(case.test)
        found["updated"] = uq.update((case.test, torch.zeros(len(case.test)))).num_data
        with using(Alone()):
            found["alone"] = _mlp().fit(_shard(rank)).num_data
    return found


def _stuck(rank: int) -> tuple[str, str]:
    """One rank does not come; the others wait no longer than their timeout."""
    group, found = dist.new_group(timeout=timedelta(seconds=2)), ("", "")
    if rank > 0:
        with using(ProcessGroup(group)):
            found = _outcome(lambda: _mlp().fit(_shard(rank)))
    dist.barrier()
    return found


def _death(rank: int) -> tuple[str, str]:
    """One rank dies while it reads."""
    group = dist.new_group(timeout=timedelta(seconds=10))

    def dying() -> Iterator[Tensor]:
        yield _shard(rank)[0]
        os._exit(1)

    with using(ProcessGroup(group)):
        return _outcome(lambda: _mlp().fit(Begins(dying) if rank == 2 else _shard(rank)))


SAID = [
    [None, "", []],  # nothing much
    ["ä" * 3000, {"x": [1.5, True]}, "y"],  # what is short on all
    ["x" * 20_000, [], {"z": "z" * 50_000}],  # what is long on some
]


def _said(rank: int) -> list[list[Any]]:
    """What every rank hears of three sayings."""
    ranks = ProcessGroup()
    return [ranks.told(values[rank]) for values in SAID]


PARTS = {
    "said": _said,
    "padding": _padding,
    "subsamples": _subsamples,
    "none held": lambda rank: [_fitted(fit, rank) for fit in NONE_HELD],
    "same data": _same_data,
    "mishaps": _mishaps,
    "alone": _alone,
    "stuck": _stuck,
}
