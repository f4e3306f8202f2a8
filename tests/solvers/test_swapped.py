"""Shares of a weight's gradients, as processes swap them, against the whole; `test_distributed` runs it all."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from richbll.network.ranks import Alone
from richbll.network.records import SiteShape
from richbll.network.structure import Dense, Outer, Windows
from richbll.solvers.plan import Size
from richbll.solvers.routes import swapped
from richbll.solvers.routes.swapped import Factors, Swap, swaps

WEIGHT = ("w", 0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def linear(n: int, T: int, height: int, width: int, c: int, by_column: bool) -> tuple[SiteShape, Outer]:
    columns = width if by_column else 0
    shape = SiteShape(WEIGHT, height * width, "linear", positions=T, widths=(height, width), columns=columns)
    return shape, Outer(randn(c, n, T, height), randn(1, n, T, width))


def convolution(n: int, height: int, channels: int, c: int) -> tuple[SiteShape, Windows]:
    widths = (height, channels * 6)
    shape = SiteShape(WEIGHT, height * widths[1], "convolution", positions=8, widths=widths, columns=channels)
    x, g = randn(1, n, channels, 3, 6), randn(c, n, height, 2, 4)
    return shape, Windows(x, g, (2, 3), (1, 1), (1, 1), 1)


@given(data=st.data(), n=st.integers(1, 3), height=st.integers(1, 5), width=st.integers(1, 7), c=st.integers(1, 2))
def test_shares_are_the_weight_once_each(data: st.DataObject, n: int, height: int, width: int, c: int) -> None:
    one: Factors
    if data.draw(st.booleans()):
        shape, one = convolution(n, height, width, c)
    else:
        shape, one = linear(n, data.draw(st.integers(1, 3)), height, width, c, by_column=data.draw(st.booleans()))
    size = data.draw(st.integers(1, shape.columns or height))
    swap = Swap(shape, [[n]] * size)
    whole = one.dense(0, shape.size).view(c, n, shape.widths[0], shape.columns or 1, -1)
    parts = []
    for rank in range(size):
        share, mine = swap.share(rank), swap.of(one, rank)
        assert share.size == mine.size == share.widths[0] * share.widths[1] > 0
        parts.append(mine.dense(0, share.size).view(c, n, share.widths[0], share.columns or 1, -1))
    torch.testing.assert_close(torch.cat(parts, dim=3 if shape.columns else 2), whole)


class Told(Alone):
    """Two processes of which the other says whatever it is given."""

    size = 2

    def __init__(self, other: list | None = None) -> None:
        self.other = other

    def told(self, value: Any) -> list[Any]:
        return json.loads(json.dumps([value, value if self.other is None else self.other]))


def found(part: dict, shape: SiteShape, memory: int = 10**9, ranks: Alone | None = None) -> list[Swap]:
    size = Size(num_rows=8, rank=3, num_gradients=1, memory=memory)
    return swaps([part, part], [shape], size, 8, Told() if ranks is None else ranks)


def test_what_changes_hands() -> None:
    shape, outer = linear(4, 1, 6, 5, 1, by_column=False)
    assert shape.row_bytes == 0  # nothing costs less
    (swap,) = found({WEIGHT: [outer]}, shape)
    assert swap.num_rows == [[4, 4], [4, 4]]
    assert not found({WEIGHT: [outer]}, shape, ranks=Alone())
    assert not found({}, shape)  # no rows here
    assert not found({WEIGHT: [outer, outer]}, shape)  # used twice
    assert not found({WEIGHT: [Dense(outer.dense(0, 30))]}, shape)  # formed already
    for other in ([None], [["another form", [4, 4]]]):
        assert not found({WEIGHT: [outer]}, shape, ranks=Told(other))
    short = linear(4, 2, 6, 5, 1, by_column=False)[1]
    size = Size(num_rows=8, rank=3, num_gradients=1, memory=10**9)
    assert not swaps([{WEIGHT: [outer]}, {WEIGHT: [short]}], [shape], size, 8, Told())  # of two forms
    assert not found({WEIGHT: [outer]}, linear(4, 1, 1, 5, 1, by_column=False)[0])  # too few rows of the weight


# C: 8 · 3 · 30 = 720 bytes; U: 8 · 8 · 3 = 192; the factors of 8 rows: 8 · row_bytes
@pytest.mark.parametrize(("row_bytes", "memory", "changes"), [(65, 10**9, True), (66, 10**9, False), (65, 4160, False)])
def test_only_what_is_less_than_its_product_and_fits(row_bytes: int, memory: int, changes: bool) -> None:
    shape, outer = linear(4, 1, 6, 5, 1, by_column=False)
    shape = SiteShape(WEIGHT, 30, "linear", widths=(6, 5), row_bytes=row_bytes)
    assert bool(found({WEIGHT: [outer]}, shape, memory)) is changes


def test_nothing_to_swap_changes_nothing() -> None:
    assert swapped.swaps([{}], [], Size(8, 3, 1, 10**9), 8, Told([])) == []
