"""Small batches are read together, and nothing but the time shows it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from richbll import RichBLL
from richbll.network.batches import Batch, Stream
from richbll.network.joining import joined_batches

CPU = torch.device("cpu")


def joined(data: Any, most: int) -> list[Batch]:
    return list(joined_batches(Stream(data, CPU).batches("test"), lambda: most))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def test_rows_keep_their_order_and_targets() -> None:
    x, y = torch.arange(50.0).view(25, 2), torch.arange(25.0)
    batches = joined(list(zip(x.split(4), y.split(4), strict=True)), 10)
    assert [batch.size for batch in batches] == [8, 8, 9]
    assert torch.equal(torch.cat([batch.args[0] for batch in batches]), x)
    assert torch.equal(torch.cat([batch.targets for batch in batches if batch.targets is not None]), y)
    assert [batch.start for batch in batches] == [0, 8, 16]
    assert batches[1].where == "batches 2 to 3 (rows 8 to 15)"


def test_batches_that_are_not_alike_stay_apart() -> None:
    short, long = torch.ones(2, 3), torch.ones(2, 4)
    assert [batch.size for batch in joined([short, short, long, long, short], 100)] == [4, 4, 2]
    assert [batch.size for batch in joined([short, short.double(), short], 100)] == [2, 2, 2]
    flags: list[dict[str, Any]] = [{"x": short, "flag": True}, {"x": short, "flag": False}, {"x": short, "flag": False}]
    assert [batch.size for batch in joined(flags, 100)] == [2, 4]
    unknown: list[dict[str, Any]] = [{"x": short, "what": object()} for _ in range(2)]
    assert [batch.size for batch in joined(unknown, 100)] == [2, 2]
    whole: list[dict[str, Any]] = [{"x": short, "mask": torch.ones(5)} for _ in range(2)]  # not one row per example
    assert [batch.size for batch in joined(whole, 100)] == [2, 2]


@pytest.mark.parametrize("solver", ["exact", "cross", "sketch"])
def test_the_fit_is_that_of_one_batch(solver: str) -> None:
    x, y = torch.randn(90, 3, dtype=torch.float64), torch.randn(90, 1, dtype=torch.float64)
    network, new = model(), torch.randn(20, 3, dtype=torch.float64)

    def std(size: int) -> Tensor:
        batches = list(zip(x.split(size), y.split(size), strict=True))
        fitted = RichBLL(network, noise_variance=0.1, ridge=1e-3, solver=solver, progress=False).fit(batches)
        return fitted.predict(new).std

    torch.testing.assert_close(std(7), std(90), rtol=1e-10, atol=0)


def test_a_model_with_one_forward_pass_for_many_small_batches() -> None:
    network, x = model(), torch.randn(256, 3, dtype=torch.float64)
    counts: list[int] = []
    network.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    RichBLL(network, noise_variance=0.1, progress=False).fit(list(x.split(4)))
    assert counts.count(256) == 1
    assert sum(count > 3 for count in counts) < 16
