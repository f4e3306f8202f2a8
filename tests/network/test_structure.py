"""Gradients in their layers' forms against literal sums in float64: whole, in ranges, in pieces, as Gram matrices."""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from richbll.network import structure
from richbll.network.rows import Rows
from richbll.network.structure import Dense, Gradient, Outer, Windows, owned, padded, place, wide
from richbll.room import Room

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
sizes = st.integers(1, 4)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@contextmanager
def small_pieces(piece: int, many_positions: int = 256, small_window: int = 32) -> Iterator[None]:
    """Pieces of a few elements, so that every loop goes round several times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "PIECE", piece)
        patch.setattr("richbll.network.rows.PIECE", piece)
        patch.setattr(structure, "MANY_POSITIONS", many_positions)
        patch.setattr(structure, "_SMALL_WINDOW", small_window)
        yield


def from_pieces(gradient: Gradient, start: int, stop: int, c: int, n: int, room: Room | None = None) -> Tensor:
    """A range, put together from its pieces. Every element must come exactly once."""
    whole = torch.zeros(c, n, stop - start, dtype=torch.float64)
    counts = torch.zeros(n, stop - start)
    for rows, elements, J in gradient.pieces(start, stop, room):
        whole[:, rows, elements] += J
        counts[rows, elements] += 1
    assert bool((counts == 1).all())
    return whole


def check_all_forms(gradient: Gradient, want: Tensor, ranges: list[tuple[int, int]]) -> None:
    """dense, pieces and kept, over all and over ranges, against (c, n, p)."""
    c, n, p = want.shape
    assert gradient.size == p
    assert p % gradient.row == 0
    room = Room()
    for held in (gradient, gradient.kept()):
        assert type(held) is type(gradient)
        assert not any(tensor.requires_grad for tensor in held.kept().tensors)
        for start, stop in [(0, p), *ranges]:
            torch.testing.assert_close(held.dense(start, stop), want[:, :, start:stop], **CLOSE)
            for where in (None, room):  # fresh memory for every piece, or the same for all
                found = from_pieces(held, start, stop, c, n, where)
                torch.testing.assert_close(found, want[:, :, start:stop], **CLOSE)


def drawn_ranges(data: st.DataObject, size: int, count: int = 2) -> list[tuple[int, int]]:
    ends = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for _ in range(count)]
    return [(start, stop) for start, stop in ends if stop > start]


# ---------------------------------------------------------------------- the literal sums


def literal_outer(left: Tensor, right: Tensor) -> Tensor:
    c, n, T = max(len(left), len(right)), left.shape[1], left.shape[2]
    left, right = left.expand(c, *left.shape[1:]), right.expand(c, *right.shape[1:])
    rows = [
        sum(torch.outer(left[k, i, t], right[k, i, t]) for t in range(T)).flatten() for k in range(c) for i in range(n)
    ]
    return torch.stack(rows).view(c, n, -1)


def literal_windows(w: Windows) -> Tensor:
    """∂/∂W[o, i, k] = Σ_p g[o, p] x[i of o's group, p · stride + k · dilation]."""
    c, n = max(len(w.x), len(w.g)), w.x.shape[1]
    x, g = w.x.expand(c, *w.x.shape[1:]), w.g.expand(c, *w.g.shape[1:])
    outs, ins, places = g.shape[2], x.shape[2] // w.groups, g.shape[3:]
    total = torch.zeros(c, n, outs, ins, *w.kernel, dtype=torch.float64)
    for k in itertools.product(*map(range, w.kernel)):
        ends = zip(k, places, w.stride, w.dilation, strict=True)
        window = x[(..., *(slice(j * d, j * d + (p - 1) * s + 1, s) for j, p, s, d in ends))]
        for o in range(outs):
            first = o // (outs // w.groups) * ins
            inner = (g[:, :, o : o + 1] * window[:, :, first : first + ins]).flatten(3).sum(dim=3)
            total[(slice(None), slice(None), o, slice(None), *k)] = inner
    return total.view(c, n, -1)


def literal_rows(rows: Rows) -> Tensor:
    c, n, T, d = rows.g.shape
    table = torch.zeros(c, n, rows.num_rows, d, dtype=torch.float64)
    for i, t in itertools.product(range(n), range(T)):
        if rows.indices[i, t] >= 0:
            table[:, i, rows.indices[i, t]] += rows.g[:, i, t]
    return table.view(c, n, -1)


# ---------------------------------------------------------------------- each form


@given(st.data(), sizes, sizes, sizes, sizes, sizes, st.sampled_from(["left", "right"]), st.integers(1, 40))
def test_outer_is_a_sum_of_outer_products(data, c, n, T, d_left, d_right, side: str, piece: int) -> None:
    left = randn(c if side == "left" else 1, n, T, d_left)
    right = randn(c if side == "right" else 1, n, T, d_right, seed=1)
    gradient, want = Outer(left, right), literal_outer(left, right)
    with small_pieces(piece):
        check_all_forms(gradient, want, drawn_ranges(data, gradient.size))


@st.composite
def windows(draw) -> Windows:
    dims, c, n, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(sizes)
    kernel, stride, dilation, positions = (
        tuple(draw(st.integers(1, most)) for _ in range(dims)) for most in (3, 2, 2, 3)
    )
    behind = draw(st.integers(0, 3))  # what no window reaches
    space = [
        (p - 1) * s + d * (k - 1) + 1 + behind for p, s, d, k in zip(positions, stride, dilation, kernel, strict=True)
    ]
    of_x = draw(st.booleans())
    x = randn(c if of_x else 1, n, groups * draw(st.integers(1, 2)), *space)
    g = randn(1 if of_x else c, n, groups * draw(st.integers(1, 2)), *positions, seed=1)
    return Windows(x, g, kernel, stride, dilation, groups)


@given(st.data(), windows(), st.integers(1, 60), st.sampled_from([0, 256]), st.sampled_from([0, 32]))
def test_windows_is_a_correlation(data, gradient: Windows, piece: int, many_positions: int, small_window: int) -> None:
    want = literal_windows(gradient)
    with small_pieces(piece, many_positions, small_window):
        check_all_forms(gradient, want, drawn_ranges(data, gradient.size))
        outer = gradient.unfolded()
    assert (outer is None) == (gradient.groups > 1 or len(gradient.kernel) != 2)
    if outer is not None:
        torch.testing.assert_close(outer.dense(0, outer.size), want, **CLOSE)


@given(st.data(), sizes, sizes, st.integers(1, 6), st.integers(1, 3), st.integers(1, 6), st.integers(1, 40))
def test_rows_are_added_where_they_were_looked_up(data, c, n, T, d, num_rows, piece: int) -> None:
    flat = data.draw(st.lists(st.integers(-1, num_rows - 1), min_size=n * T, max_size=n * T))
    gradient = Rows(torch.tensor(flat).view(n, T), randn(c, n, T, d), num_rows)
    want = literal_rows(gradient)
    with small_pieces(piece):
        check_all_forms(gradient, want, drawn_ranges(data, gradient.size))
    torch.testing.assert_close(gradient.squared_norms(), want.square().sum(dim=2), **CLOSE)
    U = randn(n, 3, seed=2)
    for start, stop in [(0, num_rows * d), *drawn_ranges(data, num_rows * d)]:
        product = gradient.product(U, start, stop)
        torch.testing.assert_close(product, want[:, :, start:stop].mT @ U, **CLOSE)


@given(st.data(), sizes, sizes, st.integers(1, 9))
def test_dense_is_what_it_holds(data, c, n, p) -> None:
    values = randn(c, n, p)
    check_all_forms(Dense(values), values, drawn_ranges(data, p))


@pytest.mark.parametrize("positions", [(15, 17), (16, 16), (17, 16)], ids=["255", "256", "272"])
def test_both_sides_of_the_number_of_positions_from_which_a_grouped_convolution_is_faster(positions) -> None:
    x, g = randn(1, 2, 4, positions[0] + 2, positions[1] + 1), randn(2, 2, 6, *positions, seed=1)
    gradient = Windows(x, g, (3, 2), (1, 1), (1, 1), 2)
    check_all_forms(gradient, literal_windows(gradient), [(5, 31), (24, 60)])


@pytest.mark.parametrize("padding", [(), (1, 2)], ids=["no padding", "padding"])
@pytest.mark.parametrize("laid_out", ["channels last", "expanded", "permuted", "with steps", "as one element"])
def test_windows_of_an_input_however_it_is_laid_out(laid_out: str, padding: tuple[int, ...]) -> None:
    x = {
        "channels last": randn(4, 3, 6, 7).to(memory_format=torch.channels_last),
        "expanded": randn(1, 3, 1, 7).expand(4, 3, 6, 7),
        "permuted": randn(7, 4, 6, 3).permute(1, 3, 2, 0),
        "with steps": randn(9, 3, 13, 15)[1::2, :, 1::2, :14:2],
        "as one element": randn(4, 3, 6, 7),
    }[laid_out]
    kernel = (1, 1) if laid_out == "as one element" else (2, 3)
    dilation, sides = (2, 1), [(side, side) for side in padding or (0, 0)]
    space = [
        size + 2 * side - d * (k - 1) for size, (side, _), d, k in zip((6, 7), sides, dilation, kernel, strict=True)
    ]
    g, before = randn(1, 4, 2, *space, seed=1), x.clone()
    gradient = Windows(x.unsqueeze(0), g, kernel, (1, 1), dilation, 1, padding)
    plain = Windows(padded(x.contiguous(), sides).unsqueeze(0), g, kernel, (1, 1), dilation, 1)
    check_all_forms(gradient, literal_windows(plain), [(1, 4)])
    assert torch.equal(x, before)


def test_windows_that_reach_too_far_are_refused() -> None:
    """A view of a larger tensor has numbers behind its end, and they are not its own."""
    x = randn(2, 3, 6, 9)[..., :6]
    with pytest.raises(AssertionError):
        Windows(x.unsqueeze(0), randn(1, 2, 2, 4, 5), (3, 3), (1, 1), (1, 1), 1, (0, 0))._columns(x)


@pytest.mark.parametrize("channels", [3, 4], ids=["windows of 27", "windows of 36"])
def test_both_sides_of_the_size_up_to_which_windows_are_unfolded_at_many_positions(channels: int, monkeypatch) -> None:
    x, g = randn(1, 5, channels, 16, 16), randn(1, 5, 2, 16, 16, seed=1)
    gradient = Windows(x, g, (3, 3), (1, 1), (1, 1), 1, (1, 1))
    unfolded = []
    columns = Windows._columns
    monkeypatch.setattr(Windows, "_columns", lambda self, x, *room: unfolded.append(len(x)) or columns(self, x))
    padded_before = Windows(padded(x, [(1, 1), (1, 1)]), g, (3, 3), (1, 1), (1, 1), 1)
    check_all_forms(gradient, literal_windows(padded_before), [(5, 31)])
    assert bool(unfolded) == (channels == 3)


# ---------------------------------------------------------------------- precision, memory, shapes


FORMS = {
    "dense": Dense(randn(2, 3, 12)),
    "outer": Outer(randn(2, 3, 4, 3), randn(1, 3, 4, 4)),
    "windows": Windows(randn(1, 3, 2, 5, 5), randn(2, 3, 3, 3, 3), (3, 3), (1, 1), (1, 1), 1),
    "windows in one dimension": Windows(randn(1, 3, 2, 5), randn(2, 3, 3, 3), (3,), (1,), (1,), 1),
    "rows": Rows(torch.tensor([[0, 2], [1, 1], [-1, 3]]), randn(2, 3, 2, 3), 4),
}


def changed(gradient: Gradient, change) -> Gradient:
    """The same form of other tensors."""
    parts = {name: value for name, value in vars(gradient).items() if isinstance(value, Tensor)}
    others = {name: value for name, value in vars(gradient).items() if not isinstance(value, Tensor)}
    return type(gradient)(**{name: change(value) for name, value in parts.items()}, **others)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("held", "given_back"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
    ids=str,
)
def test_in_at_least_float32(name: str, held: torch.dtype, given_back: torch.dtype) -> None:
    exact = FORMS[name]
    gradient = changed(exact, lambda t: t.to(held) if t.is_floating_point() else t)
    want = changed(gradient, lambda t: t.double() if t.is_floating_point() else t).dense(0, exact.size)
    got = gradient.dense(0, exact.size)
    assert got.dtype == given_back
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    assert all(J.dtype == given_back for _, _, J in gradient.pieces(0, exact.size))


@pytest.mark.parametrize("name", FORMS)
def test_shapes_without_data(name: str) -> None:
    """On the meta device, which has shapes only: what a plan could ask before any work."""
    exact = FORMS[name]
    gradient = changed(exact, lambda t: t.to("meta"))
    assert (gradient.size, gradient.row) == (exact.size, exact.row)
    for start, stop in [(0, gradient.size), (1, gradient.size - 1), (3, 4)]:
        assert gradient.dense(start, stop).shape == exact.dense(start, stop).shape == (2, 3, stop - start)
        with small_pieces(7):
            cut = [(rows, elements, J.shape) for rows, elements, J in gradient.pieces(start, stop)]
        for rows, elements, shape in cut:
            assert shape == (2, rows.stop - rows.start, elements.stop - elements.start)
    assert [t.shape for t in gradient.kept().tensors] == [t.shape for t in exact.tensors]


def test_unfolded_shapes_without_data() -> None:
    x, g = torch.empty(1, 7, 2, 9, 9, device="meta"), torch.empty(5, 7, 3, 4, 4, device="meta")
    windows = Windows(x, g, (3, 3), (2, 2), (1, 1), 1)
    outer = windows.unfolded()
    assert outer is not None
    assert [t.shape for t in outer.tensors] == [(5, 7, 16, 3), (1, 7, 16, 18)]


@pytest.mark.parametrize("name", FORMS)
def test_what_is_kept_holds_no_graph_and_no_larger_tensor(name: str) -> None:
    exact = FORMS[name]
    larger = changed(exact, lambda t: torch.cat([t] * 5, dim=t.ndim - 1)[..., : t.shape[-1]])
    if name == "dense":
        larger = Dense(torch.cat([exact.values] * 5, dim=2).requires_grad_()[..., : exact.size])
    kept = larger.kept()
    torch.testing.assert_close(kept.dense(0, exact.size), exact.dense(0, exact.size))
    for tensor in kept.tensors:
        assert not tensor.requires_grad
        assert tensor.untyped_storage().nbytes() <= 2 * tensor.numel() * tensor.element_size()


def test_a_tensor_of_its_own_is_not_copied() -> None:
    values = randn(3, 4)
    assert owned(values).data_ptr() == values.data_ptr()
    assert owned(values[:, :1]).data_ptr() != values.data_ptr()


def test_places_tell_a_view_from_the_whole() -> None:
    values = randn(4, 6)
    assert place(values) == place(values.detach())
    different = [values, values[:, :3], values[:2], values.view(2, 12), values.view(6, 4), values.mT, values[1:]]
    assert len({place(view) for view in different}) == len(different)


def test_wide_never_narrows() -> None:
    assert [wide(randn(1).to(d)).dtype for d in (torch.float16, torch.float32, torch.float64)] == [
        torch.float32,
        torch.float32,
        torch.float64,
    ]


def test_padding_goes_to_the_last_dimensions_each_side_for_itself() -> None:
    x = torch.ones(1, 1, 2, 3)
    got = padded(x, [(1, 0), (2, 3)])
    assert got.shape == (1, 1, 3, 8)
    assert got[0, 0].tolist() == [[0] * 8, [0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]]
    assert padded(x, [(0, 0), (0, 0)]) is x


@pytest.mark.parametrize("T", [1, 4])
def test_pieces_of_one_output_share_a_room(T: int) -> None:
    outer, room = Outer(randn(1, 3, T, 5), randn(1, 3, T, 6)), Room()
    with small_pieces(3 * 6):
        places = {J.data_ptr() for _, _, J in outer.pieces(0, 30, room)}
        assert len(places) == 1
        assert len({J.data_ptr() for _, _, J in list(outer.pieces(0, 30))}) == 5
    if T == 1:  # factors of different precisions
        mixed = Outer(outer.left.float(), outer.right)
        torch.testing.assert_close(from_pieces(mixed, 2, 17, 1, 3, room), outer.dense(2, 17), rtol=1e-6, atol=1e-6)


def test_large_pieces_stay_below_the_size_that_leaves_the_caches() -> None:
    outer = Outer(torch.empty(1, 300, 1, 600, device="meta"), torch.empty(1, 300, 1, 700, device="meta"))
    sizes = [math.prod(J.shape) for _, _, J in outer.pieces(0, outer.size)]
    assert sum(sizes) == 300 * 600 * 700
    assert max(sizes) <= structure.PIECE
