"""Several processes that each read a shard end with what one process would have found, or with an error in all."""

import multiprocessing
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from richbll import RichBLL
from richbll.core.subsample import smallest
from richbll.distributed import Alone, current_ranks
from richbll.errors import DataError
from richbll.network.batches import Stream
from richbll.rng import row_keys
from tests.distributed_ranks import (
    FITS,
    NONE_HELD,
    NUM_PADDED,
    PADDED,
    SAID,
    SEED,
    SHARDS,
    SIZE,
    SUBSAMPLES,
    Fit,
    answers,
    padded_data,
    run,
)  # fmt: skip
from tests.solvers.test_solvers import truth

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank found; they run once for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed_ranks"])
    processes = [context.Process(target=run, args=(rank, folder)) for rank in range(SIZE)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
    hanging = [process for process in processes if process.is_alive()]
    for process in hanging:
        process.kill()
    assert not hanging, "a rank hangs"
    results = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]
    for rank in (0, 1):  # the third is dead by then
        results[rank]["death"] = torch.load(folder / f"{rank} at the end.pt", weights_only=False)
    return results


def assert_same(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    assert (got["num_data"], got["subsample_size"]) == (want["num_data"], want["subsample_size"])
    for name in ("variance", "noise", "ridge", "trace"):
        a, b = got[name], want[name]
        assert bool(((a - b).abs() <= tolerance * b.abs()).all()), f"{name} is off by {(a / b - 1).abs().max():.2g}"


@pytest.mark.filterwarnings("ignore::richbll.errors.RichBLLWarning")
@pytest.mark.parametrize("fit", FITS, ids=[fit.id for fit in FITS])
def test_three_ranks_equal_one(fit: Fit, found) -> None:
    case = fit.case()
    batches = [batch for shard in fit.batches(case) for batch in shard]
    want = answers(fit.estimator(case).fit(batches), case.test)
    for result in found:
        assert_same(result[fit.id], want, TOLERANCE[fit.dtype])
        assert set(fit.calls) <= set(result[fit.id]["calls"])


@pytest.mark.parametrize("as_batches", [False, True], ids=["sampler", "batch_sampler"])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("size", [2, 3])
def test_rows_that_fill_up_a_shard_do_not_count_twice(size: int, shuffle: bool, as_batches: bool, found) -> None:
    case = PADDED.case()
    want = answers(PADDED.estimator(case).fit(DataLoader(padded_data(PADDED), batch_size=7)), case.test)
    assert want["num_data"] == NUM_PADDED
    for result in found[:size]:
        assert_same(result["padding"][f"{size} {shuffle} {as_batches}"], want, 1e-10)


@pytest.mark.parametrize("number", range(len(SUBSAMPLES)), ids=[fit.id for fit in SUBSAMPLES])
def test_a_subsample_is_drawn_from_the_rows_of_all_ranks(number: int, found) -> None:
    fit = SUBSAMPLES[number]
    case = fit.case()
    want = answers(fit.estimator(case).fit(DataLoader(padded_data(fit), batch_size=9)), case.test)
    assert want["subsample_size"] < NUM_PADDED
    for result in found:
        assert_same(result["subsamples"][number], want, 1e-10)


@pytest.mark.parametrize("number", range(len(NONE_HELD)), ids=[fit.id for fit in NONE_HELD])
def test_a_rank_that_holds_no_row_of_a_subsample(number: int, found) -> None:
    keys = np.concatenate([row_keys(SEED, rank << 40, count) for rank, count in enumerate(SHARDS)])
    rows = smallest(keys, 20)
    assert not rows[-SHARDS[-1] :].any()
    want = truth(NONE_HELD[number].case(), 0.0, weight=3, rows=torch.from_numpy(rows))
    for result in found:
        np.testing.assert_allclose(result["none held"][number]["variance"].numpy(), want, rtol=1e-8)


def test_the_same_data_on_several_ranks_is_noticed(found) -> None:
    for result in found:
        (message,) = result["same data"]
        assert message.startswith("The first batch is the same on ranks 1, 2: each rank must read its own part")


MISHAPS = {
    "an error of the data": (1, "OSError: the disk is on fire"),
    "others read for ever": (0, "OSError: the disk is on fire"),
    "no rows": (2, "DataError: The loader yielded no examples"),
    "no rows but padding": (2, "DataError: The loader yielded no examples"),
    "not finite": (1, "NonFiniteError: NaN or Inf in the output"),
    "what cannot be said": (1, "TypeError: Object of type object is not JSON serializable"),
    "an error without words": (1, "_WordlessError"),
    "no finite gradient": (1, "NonFiniteError: NaN or Inf in the gradients"),
    "no finite gradient of a weight that changes hands": (1, "NonFiniteError: NaN or Inf in the gradients"),
}


@pytest.mark.parametrize("name", MISHAPS)
def test_an_error_on_one_rank_is_an_error_on_all(name: str, found) -> None:
    guilty, text = MISHAPS[name]
    for rank, result in enumerate(found):
        kind, message = result["mishaps"][name]
        if rank == guilty:
            assert f"{kind}: {message}".startswith(text)
        else:
            assert kind == "DistributedError"
            assert message.startswith(f"Rank {rank} of 3 stops, because rank {guilty} failed at '")
            assert f"with {text}" in message


def test_ranks_must_read_the_same_network_with_the_same_options(found) -> None:
    for result in found:
        kind, message = result["mishaps"]["other weights"]
        assert kind == "DistributedError"
        assert message.startswith("Rank 2 differs from rank 0 in weights of the model.")
        assert result["mishaps"]["other options"][1].startswith("Rank 1 differs from rank 0 in ridge.")


def test_what_needs_all_of_the_data_in_one_process_is_refused(found) -> None:
    for result in found:
        kind, message = result["mishaps"]["transform per class"]
        assert kind == "OptionError"
        assert message.startswith('transform="per_class" needs all of the data in one process, but 3 read it.')
        assert result["mishaps"]["automatic subsample"][1].startswith('subsample="auto" needs all of the data')


def test_all_ranks_read_once_where_one_of_them_can_read_only_once(found) -> None:
    assert [result["mishaps"]["read once on one rank"] for result in found] == [("", "")] * SIZE


def test_what_ranks_tell_each_other_of_any_length(found) -> None:
    assert [result["said"] for result in found] == [SAID] * SIZE


def test_after_the_fit_every_rank_is_on_its_own(found) -> None:
    assert [result["alone"]["all"] for result in found] == [60, 60, 60]
    assert (found[1]["alone"]["updated"], found[1]["alone"]["alone"]) == (69, SHARDS[1])


@pytest.mark.parametrize(("name", "others"), [("stuck", [1, 2]), ("death", [0, 1])])
def test_a_rank_that_is_stuck_or_dead_is_an_error_on_the_others(name: str, others: list[int], found) -> None:
    for rank in others:
        kind, message = found[rank][name]
        assert kind == "DistributedError"
        assert message.startswith(f"Rank {rank} of 3 could not ")
        assert "look at what the others say" in message


def test_the_example_runs_under_torchrun() -> None:
    script = Path(__file__).parent.parent / "examples" / "torchrun_fit.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    told = subprocess.run([*torchrun, str(script)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    lines = re.findall(r"rank (\d) of 2: 1001 examples, standard deviation ([\d.]+) at", told.stdout)
    assert sorted(rank for rank, _ in lines) == ["0", "1"]
    assert len({deviation for _, deviation in lines}) == 1


# ---------------------------------------------------------------------- in one process


def test_without_a_process_group_there_is_one_rank() -> None:
    assert isinstance(current_ranks(), Alone)
    assert (current_ranks().rank, current_ranks().size) == (0, 1)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("num_rows", "size"), [(61, 2), (61, 3), (60, 3), (11, 4), (7, 5)])
def test_every_example_is_read_by_one_rank(num_rows: int, size: int, drop_last: bool) -> None:
    data, seen = torch.arange(num_rows).unsqueeze(1), []
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(0)).tolist()  # as the samplers shuffle
    for rank in range(size):
        sampler = DistributedSampler(data, size, rank, drop_last=drop_last)
        stream = Stream(DataLoader(data, batch_size=4, sampler=sampler), torch.device("cpu"))
        batches = list(stream.batches("reading"))
        rows = torch.cat([batch.args[0] for batch in batches]).flatten().tolist()
        assert [order[number] for batch in batches for number in stream.numbers(batch)] == rows
        seen += rows
    assert len(seen) == len(set(seen)) == (num_rows - num_rows % size if drop_last else num_rows)


@pytest.mark.parametrize("collate", [lambda rows: torch.stack(rows * 2), lambda rows: torch.stack(rows[:1])])
def test_a_loader_whose_rows_are_not_its_samplers_examples_is_refused(collate) -> None:
    data = torch.randn(61, 4)
    loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data, 2, 1), collate_fn=collate)
    with pytest.raises(DataError, match=r"rows \(\d+\) are not the 31 examples of its DistributedSampler.*drop_last"):
        RichBLL(torch.nn.Linear(4, 1), noise_variance=1.0).fit(loader)
