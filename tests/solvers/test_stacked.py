"""Gradients of several batches in one piece: C, H and norms are the same however they are put together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from richbll.network import structure
from richbll.network.ranks import Alone
from richbll.network.records import SiteShape
from richbll.network.rows import Rows
from richbll.network.structure import Dense, Gradient, Outer, Windows
from richbll.room import Room, Shelf
from richbll.solvers.routes import stacked
from richbll.solvers.routes.explicit import kept_energy
from richbll.solvers.routes.ranges import Range

RHO = 3
SITE = ("w", 0)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def linear(n: int, c: int, T: int) -> tuple[SiteShape, Gradient]:
    return SiteShape(SITE, 20, "linear", positions=T, widths=(4, 5)), Outer(randn(c, n, T, 4), randn(1, n, T, 5))


def convolution(n: int, c: int, T: int) -> tuple[SiteShape, Gradient]:
    shape = SiteShape(SITE, 3 * 4 * 3, "convolution", positions=2 * T, widths=(3, 12), columns=4)
    return shape, Windows(randn(1, n, 4, 2, T + 2), randn(c, n, 3, 2, T), (1, 3), (1, 1), (1, 1), 1)


def grouped(n: int, c: int, T: int) -> tuple[SiteShape, Gradient]:
    """Of two groups: a range inside one is made with all of it."""
    shape = SiteShape(SITE, 4 * 2 * 3, "convolution", positions=2 * T, widths=(4, 6))
    return shape, Windows(randn(1, n, 4, 2, T + 2), randn(c, n, 4, 2, T), (1, 3), (1, 1), (1, 1), 2)


def vector(n: int, c: int, T: int) -> tuple[SiteShape, Gradient]:
    return SiteShape(SITE, 7, "vector"), Dense(randn(c, n, 7))


def table(n: int, c: int, T: int) -> tuple[SiteShape, Gradient]:
    """Of so many rows that it is added up token by token."""
    rows = 65 * T
    shape = SiteShape(SITE, rows * 2, "embedding", positions=T, widths=(rows, 2))
    return shape, Rows(torch.randint(-1, rows, (n, T)), randn(c, n, T, 2), rows)


KINDS = {f.__name__: f for f in (linear, convolution, grouped, vector, table)}


@settings(max_examples=200, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("kind", list(KINDS))
def test_batches_are_one_below_another(kind: str, data: st.DataObject) -> None:
    """H = CᵀC with C = Φ^mᵀU from gradients that are written out, for any sizes of batches, ranges and stacks."""
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5), label="rows of batches")
    c, T = data.draw(st.integers(1, 2), label="outputs"), data.draw(st.integers(1, 3), label="positions")
    most = data.draw(st.sampled_from([3, 4, 5, 8, 10**6]), label="elements of a range")
    most_bytes = data.draw(st.sampled_from([1, 96, 320, 10**6]), label="bytes of a stack")
    limits = {
        (structure, "_CONVOLVED"): data.draw(st.sampled_from([1, 60, 10**6]), label="numbers of a convolution"),
        (structure, "PIECE"): data.draw(st.sampled_from([1, 7, 30, 10**6]), label="numbers of a piece"),
        (structure, "MANY_POSITIONS"): data.draw(st.sampled_from([1, 10**6]), label="positions of a convolution"),
    }
    made = [KINDS[kind](n, c, T) for n in counts]
    shape = made[0][0]
    uses = [[gradient] for _, gradient in made]
    if data.draw(st.booleans(), label="a batch without a rule"):
        uses[0] = [Dense(uses[0][0].dense(0, shape.size))]
    if kind != "table" and data.draw(st.booleans(), label="used twice"):
        uses = [[*one, Dense(randn(c, n, shape.size))] for one, n in zip(uses, counts, strict=True)]
    by_column = shape.columns > 0 and len(uses[0]) == 1 and most > shape.size // shape.columns
    ranges = Range(shape, 0, shape.size, by_column).cut(most)
    U = randn(sum(counts), RHO)
    phi_m = torch.cat([sum(use.dense(0, shape.size) for use in one) for one in uses], dim=1)
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in limits.items():
            patch.setattr(module, name, value)
        H, norms = kept_energy([{SITE: one} for one in uses], ranges, U, c, Alone(), most_bytes)
    C = torch.einsum("cnp,nr->cpr", phi_m, U)
    torch.testing.assert_close(H, C.mT @ C, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(norms, phi_m.square().sum(dim=2), rtol=1e-9, atol=1e-12)


def test_products_have_the_rows_of_many_batches(monkeypatch) -> None:
    """Eight batches of 2 rows, of which a stack holds 6 rows: three products, and what is made there is not moved."""
    found = [linear(2, 1, 2) for _ in range(8)]
    seen, moved = [], []
    monkeypatch.setattr(Tensor, "copy_", lambda *args: moved.append(args))
    room = Room()
    for rows, some in stacked.neighbours([[one] for _, one in found], most_rows=6):
        part = Range(found[0][0], 0, 20)
        for piece, elements, J in stacked.stacked(some, rows, part, 1, randn(1), room):
            assert piece == rows
            assert elements == slice(0, 20)
            seen.append(rows)
            whole = torch.cat([one.dense(0, 20) for (one,) in some], dim=1)
            torch.testing.assert_close(J, whole)
    assert seen == [slice(0, 6), slice(6, 12), slice(12, 16)]
    assert not moved


def test_a_stack_takes_the_precision_of_its_products() -> None:
    """Gradients of bfloat16 models are float32 in it."""
    coarse = [Dense(torch.randn(1, 2, 6).bfloat16()) for _ in range(3)]
    part = Range(SiteShape(SITE, 6, "vector"), 0, 6)
    ((rows, _, J),) = stacked.stacked([[one] for one in coarse], slice(4, 10), part, 1, torch.randn(1), Room())
    assert rows == slice(4, 10)
    assert J.dtype == torch.float32
    assert torch.equal(J, torch.cat([one.values for one in coarse], dim=1).float())


def test_a_shelf_is_a_room_where_it_has_no_place() -> None:
    whole = torch.zeros(4)
    shelf = Shelf(Room(), whole)
    assert shelf.take((2, 2), like=whole).data_ptr() == whole.data_ptr()
    for other in (shelf.take((5,), whole), shelf.take((2,), whole, place=1), shelf.take((2,), whole.double())):
        assert other.untyped_storage().data_ptr() != whole.data_ptr()
    shelf.lies(whole[3:])
    assert shelf.take((1, 1), like=whole).data_ptr() == whole[3:].data_ptr()
    assert shelf.take((2, 1), like=whole).untyped_storage().data_ptr() != whole.data_ptr()
