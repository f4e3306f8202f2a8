"""A killed fit goes on where it stopped, and ends with the same bits."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from tqdm import tqdm

from richbll import RichBLL, load
from richbll.errors import ArtifactError, CheckpointError, DataChangedError, DataError, OptionError
from richbll.network.records import RecordReader
from tests import checkpoint_jobs as jobs
from tests.checkpoint_jobs import NUM_BATCHES, SETUPS, data, fit, fit_until_written, mlp

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def processes():
    """New processes from a server that has imported torch once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["richbll", "torch.fx.experimental.symbolic_shapes"])  # which autograd imports late
    return context


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "fit.ckpt"


def exit_code(processes, target, *args) -> int:
    process = processes.Process(target=target, args=args)
    process.start()
    process.join(60)
    return process.exitcode


def assert_same_bits(a: Path, b: Path) -> None:
    first, second = load_file(a), load_file(b)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def fitted(path=None, batches=None, model=None, every: int = 2, val=None, **options) -> RichBLL:
    uq = RichBLL(mlp() if model is None else model, **{"noise_variance": 0.1} | options)
    return uq.fit(data() if batches is None else batches, val=val, checkpoint=path, checkpoint_every=every)


def interrupted(path: Path, num_read: int, **options) -> bytes:
    """A fit that Ctrl-C stops after so many reads; what is in its checkpoint."""

    class Stopping(jobs.Deadly):
        def __iter__(self):
            for batch in self.batches:
                if self.num_read == num_read:
                    raise KeyboardInterrupt
                self.num_read += 1
                yield batch

    with pytest.raises(KeyboardInterrupt):
        fitted(path, Stopping(data(), None), **options)
    return path.read_bytes()


# ---------------------------------------------------------------------- to the bit

TWO_PASSES = [4, 9, 5]  # reads: in the features, then in the gradients, then once more in the gradients
KILLS = {"in blocks": [4, 9, 9, 15], "cross": [3, 5], "sketch": [3, 5], "classes": [2, 5]}


@pytest.mark.parametrize("setup", [name for name in SETUPS if name != "subsample"])
def test_killed_again_and_again(setup: str, processes, tmp_path, path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert exit_code(processes, fit, setup, tmp_path / "other.ckpt", whole) == 0
    for number, last in enumerate(KILLS.get(setup, TWO_PASSES)):
        before = path.read_bytes() if number else b""
        assert exit_code(processes, fit, setup, path, None, last) == -signal.SIGKILL
        assert path.read_bytes() != before  # it came further
    assert exit_code(processes, fit, setup, path, resumed) == 0
    assert_same_bits(whole, resumed)
    assert {file.name for file in tmp_path.iterdir()} == {"whole", "resumed"}


@pytest.mark.parametrize("setup", ["exact", "subsample"])
def test_killed_while_writing(setup: str, processes, tmp_path, path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert exit_code(processes, fit, setup, tmp_path / "other.ckpt", whole) == 0
    for write, when in ((2, "half"), (2, "whole"), (3, "renamed"), (2, "half"), (2, "renamed")):
        assert exit_code(processes, fit_until_written, setup, path, write, when) == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == (2 if when == "renamed" else 3)  # a leftover of the last write alone
    assert exit_code(processes, fit, setup, path, resumed) == 0
    assert_same_bits(whole, resumed)
    assert {file.name for file in tmp_path.iterdir()} == {"whole", "resumed"}


def test_in_an_interpreter_of_its_own(processes, tmp_path, path) -> None:
    assert exit_code(processes, fit, "exact", tmp_path / "other.ckpt", tmp_path / "whole") == 0
    assert exit_code(processes, fit, "exact", path, None, 10) == -signal.SIGKILL
    code = (
        "from tests.checkpoint_jobs import fit; from pathlib import Path; "
        f"assert fit('exact', Path({str(path)!r}), Path({str(tmp_path / 'resumed')!r})) == {NUM_BATCHES}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_same_bits(tmp_path / "whole", tmp_path / "resumed")


def test_routes_that_stopped_holding_are_remembered(path, monkeypatch) -> None:
    """Batches of other lengths are not like the trial run: rules are given up, also for batches after a restart."""

    class Summing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(sum(torch.tanh(self.cell(x[:, t])) for t in range(x.shape[1])))

    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(20, length, 3, generator=generator) for length in (2, 2, 3, 2, 2, 2)]
    by_rules, read = [], RecordReader._by_rules
    monkeypatch.setattr(
        RecordReader, "_by_rules", lambda *args, **kw: by_rules.append(args[1].index) or read(*args, **kw)
    )
    whole = fitted(path, batches, Summing(), solver="cross")
    assert by_rules == [0, 1, 2]

    def stopping():
        yield from batches[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(path, stopping(), Summing(), solver="cross")
    by_rules.clear()
    resumed = fitted(path, iter(batches), Summing(), solver="cross")
    assert by_rules == []
    assert torch.equal(whole._state.posterior.W, resumed._state.posterior.W)


def test_a_checkpoint_changes_nothing_but_rounding(path) -> None:
    x = data()[0][0]
    torch.testing.assert_close(fitted(path).predict(x).std, fitted().predict(x).std, rtol=1e-5, atol=0)
    assert not path.exists()


# ---------------------------------------------------------------------- interruptions


def test_ctrl_c_leaves_a_checkpoint_that_can_be_used(path) -> None:
    interrupted(path, 9)
    read = []

    class Counting(jobs.Deadly):
        def __iter__(self):
            for batch in self.batches:
                read.append(batch)
                yield batch

    resumed = fitted(path, Counting(data(), None))
    assert len(read) == NUM_BATCHES  # the features were not read again
    assert torch.equal(resumed._state.posterior.W, fitted(path)._state.posterior.W)


def test_ctrl_c_leaves_the_estimator_as_it_was() -> None:
    uq = fitted()
    x = data()[0][0]
    before = uq.predict(x).std

    def stopping():
        yield from data()[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        uq.fit(stopping())
    assert torch.equal(uq.predict(x).std, before)
    fresh = RichBLL(mlp(), noise_variance=0.1)
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(stopping())
    assert repr(fresh) == "RichBLL(Sequential, not fitted)"


@pytest.mark.filterwarnings("ignore::richbll.errors.RichBLLWarning")
def test_it_stays_until_the_tuning_is_done(path) -> None:
    with pytest.raises(DataError):
        fitted(path, val=[data()[0][0]])  # no targets to tune with
    assert path.exists()
    held_out = [(x, y + torch.randn(len(y), generator=torch.Generator().manual_seed(2))) for x, y in data()[:2]]
    tuned = fitted(path, val=held_out)
    assert not path.exists()
    assert torch.equal(tuned.noise_variance, fitted(path, val=held_out).noise_variance)


# ---------------------------------------------------------------------- other data


@pytest.mark.parametrize("num_read", [5, 9])
def test_another_order(path, num_read: int) -> None:
    kept = interrupted(path, num_read)
    batches = data()
    for changed in (
        [batches[0], batches[2], batches[1], *batches[3:]],
        [batches[0], (batches[1][0], batches[1][1] + 1), *batches[2:]],
        [batches[0], (batches[1][0].flip(0), batches[1][1]), *batches[2:]],
        [batches[0], batches[1][0], *batches[2:]],
    ):
        with pytest.raises(
            DataChangedError, match=r"batch 1 \(rows 40 to 79\) differs from its first reading.*fit.ckpt"
        ):
            fitted(path, changed)
        assert path.read_bytes() == kept
    assert torch.equal(fitted(path)._state.posterior.W, fitted(path)._state.posterior.W)


def test_more_or_less_data_than_before(path) -> None:
    interrupted(path, 9)
    with pytest.raises(DataChangedError, match="ended after 5 batches, but its first reading had 6"):
        fitted(path, data()[:5])
    with pytest.raises(DataChangedError, match=r"batch 6.*comes after the end of the first reading"):
        fitted(path, [*data(), data()[0]])
    assert torch.equal(fitted(path)._state.posterior.W, fitted(path)._state.posterior.W)  # nothing was lost


def test_data_is_looked_at_even_when_all_of_it_was_read(path) -> None:
    with pytest.raises(DataError):
        fitted(path, val=[data()[0][0]], solver="cross")
    kept, batches = path.read_bytes(), data()
    with pytest.raises(DataChangedError, match="batch 5"):
        fitted(path, [*batches[:5], batches[0]], solver="cross")
    assert path.read_bytes() == kept


def test_a_loader_that_shuffles_is_told_at_the_second_pass(path) -> None:
    x = torch.cat([x for x, _ in data()])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=40, shuffle=True)
    with pytest.raises(DataChangedError, match=r"batch 0.*no shuffling"):
        fitted(path, loader)


def test_a_stream_that_can_be_read_once(path) -> None:
    def stopping():
        yield from data()[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(path, stopping())
    assert path.exists()
    assert torch.equal(fitted(path, iter(data()))._state.posterior.W, fitted(path, solver="cross")._state.posterior.W)


# ---------------------------------------------------------------------- another fit


def test_another_model_or_other_options(path) -> None:
    kept = interrupted(path, 9)
    trained = mlp()
    with torch.no_grad():
        trained[0].weight[-1, -1] += 1e-3
    relu = nn.Sequential(*mlp()[:3], nn.ReLU(), mlp()[4])
    for options, message in (
        ({"model": trained}, "weights of the model was"),
        ({"model": relu}, "modules of the model was"),
        ({"model": mlp(2)}, "weights of the model was"),
        ({"solver": "cross"}, "solver was auto, is cross"),
        ({"subsample": 100, "seed": 3}, "subsample was None, is 100; seed was 0, is 3"),
        ({"enrich": False}, "enrich was True, is False"),
        ({"memory_budget": "1GiB"}, "memory_budget was"),
        ({"noise_variance": lambda x: x[:, :1] ** 2 + 1}, "noise was constant, is a function"),
    ):
        with pytest.raises(CheckpointError, match=f"fit.ckpt belongs to another fit.*{message}.*The file is as it was"):
            fitted(path, **options)
        assert path.read_bytes() == kept
    fitted(path, ridge=0.1, prior_variance=3.0)  # what the data does not depend on may change


def test_data_of_another_kind(path) -> None:
    kept = interrupted(path, 9)
    with pytest.raises(CheckpointError, match="read 'features' where this one reads 'features and gradients'"):
        fitted(path, iter(data()))
    assert path.read_bytes() == kept


@pytest.mark.parametrize("keep", [0, 7, 500, -1000, -1])
def test_truncated(path, keep: int) -> None:
    damaged = interrupted(path, 9)[:keep]
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"fit\.ckpt cannot be read: truncated"):
        fitted(path)
    assert path.read_bytes() == damaged


def test_damaged(path) -> None:
    kept = bytearray(interrupted(path, 9))
    kept[-1000] ^= 1
    path.write_bytes(kept)
    with pytest.raises(CheckpointError, match=r"fit\.ckpt is damaged"):
        fitted(path)
    assert path.read_bytes() == kept
    save_file({"W": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not one that richbll wrote"):
        fitted(path)
    save_file({"W": torch.zeros(1)}, path, metadata={"richbll-checkpoint": '{"format": 99}'})
    with pytest.raises(CheckpointError, match="format 99; this version of richbll reads format 1"):
        fitted(path)


def test_a_checkpoint_is_no_posterior_and_a_posterior_no_checkpoint(path) -> None:
    interrupted(path, 9)
    with pytest.raises(ArtifactError, match="not one that richbll wrote"):
        load(path, mlp())
    fitted().save(path)
    with pytest.raises(CheckpointError, match="not one that richbll wrote"):
        fitted(path)


def test_what_cannot_be(path, tmp_path) -> None:
    with pytest.raises(OptionError, match="checkpoint_every=0"):
        fitted(path, every=0)
    with pytest.raises(OptionError, match="must be the path of a file"):
        fitted(3)
    with pytest.raises(CheckpointError, match="no such folder"):
        fitted(tmp_path / "nowhere" / "fit.ckpt")
    with pytest.raises(CheckpointError, match="it is a folder"):
        fitted(tmp_path)
    options = {"likelihood": "classification", "transform": "per_class", "noise_variance": None}
    with pytest.raises(OptionError, match="per_class"):
        fitted(path, data(3), mlp(3), **options)


# ---------------------------------------------------------------------- progress


def test_the_bar_shows_rate_and_remaining_time_also_of_what_is_skipped(path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("richbll.network.batches.tqdm", functools.partial(tqdm, mininterval=0, miniters=1))
    interrupted(path, 11)
    capsys.readouterr()
    fitted(path, progress=True)
    bars = capsys.readouterr().err.split("\r")
    for done in range(1, NUM_BATCHES + 1):
        shown = [bar for bar in bars if bar.startswith("gradients") and f"| {done}/{NUM_BATCHES} [" in bar]
        assert shown, done
        assert all("<" in bar for bar in shown)
        assert all("it/s" in bar or "s/it" in bar for bar in shown)
