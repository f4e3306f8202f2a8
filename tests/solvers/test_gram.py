"""K block by block: against literal inner products of gradients, whatever forms and uses they have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from richbll import RichBLL
from richbll.network.ranks import Alone
from richbll.network.structure import Dense, Outer
from richbll.solvers import plan
from richbll.solvers.routes import gram
from richbll.solvers.routes.forms import side_by_side
from richbll.solvers.routes.gram import Rowwise, energy_in
from tests.cases import Forward
from tests.reference.dense import jacobians, projection

N = 9
sizes = st.integers(1, 3)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal(outer: Outer) -> Tensor:
    """Σ_t left_t right_tᵀ of every example."""  # (c, N, d_left · d_right)
    c = max(len(outer.left), len(outer.right))
    left, right = (factor.expand(c, *factor.shape[1:]) for factor in outer.tensors)
    return torch.stack(
        [
            torch.stack([(a.mT @ b).flatten() for a, b in zip(*pair, strict=True)])
            for pair in zip(left, right, strict=True)
        ]
    )


@st.composite
def gradients(draw) -> tuple[Rowwise, Tensor]:
    """Of several weights, some used twice, and of other parameters; with K (c, N, N)."""
    c = draw(sizes)
    outers: dict = {}
    dense: dict = {}
    K = torch.zeros(c, N, N, dtype=torch.float64)
    for number in range(draw(st.integers(0, 3))):
        d_left, d_right = draw(sizes), draw(sizes)
        uses = []
        for use in range(draw(st.integers(1, 2))):
            T, seed, side = draw(sizes), 10 * number + use, draw(st.sampled_from(["left", "right", "neither"]))
            left = randn(seed, c if side == "left" else 1, N, T, d_left)
            uses.append(Outer(left, randn(seed + 100, c if side == "right" else 1, N, T, d_right)))
        whole = sum(literal(use) for use in uses)
        K += whole @ whole.mT
        outers[("w", number)] = uses
    for number in range(draw(st.integers(0 if outers else 1, 2))):
        values = randn(200 + number, draw(st.sampled_from([1, c])), N, draw(sizes))
        K += values @ values.mT
        dense[("b", number)] = Dense(values)
    return Rowwise(outers, dense), K


@given(gradients(), st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), min_size=1, max_size=4))
def test_blocks_are_inner_products(made: tuple[Rowwise, Tensor], corners: list[tuple[int, int]]) -> None:
    """One block after another, of any sizes, in the same memory."""
    rows, K = made
    blocks = rows.blocks(torch.float64)
    for i, j in corners:
        found = blocks.block(slice(i, N), slice(j, N))
        torch.testing.assert_close(found.expand(len(K), N - i, N - j), K[:, i:, j:], rtol=1e-12, atol=1e-12)


@given(gradients(), st.integers(0, 9))
def test_columns_of_zeros_in_u_add_nothing(made: tuple[Rowwise, Tensor], extra: int) -> None:
    """U is laid out with some behind its own, which give zeros and leave the rest as it is."""
    rows, K = made
    U = randn(300, N, 4)
    H, trace = energy_in(rows, functional.pad(U, (0, extra)), len(K), Alone(), torch.float64)
    torch.testing.assert_close(H[:, :4, :4], U.mT @ K @ U, rtol=1e-11, atol=1e-11)
    assert float(H[:, 4:].abs().sum() + H[:, :, 4:].abs().sum()) == 0
    torch.testing.assert_close(trace, K.diagonal(dim1=1, dim2=2).sum(dim=1), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("width", [6, 7, 8, 15, 16, 17])
def test_wide_layers_of_any_width_are_exact(width: int) -> None:
    """With the bias one direction more than that: U is as wide as a multiple of eight, and AᵀA is not."""
    torch.manual_seed(width)
    body = [nn.Linear(3, 400), nn.Tanh(), nn.Linear(400, 400), nn.Tanh(), nn.Linear(400, width), nn.Tanh()]
    model, x = nn.Sequential(*body, nn.Linear(width, 1)).double(), randn(width, 60, 3)
    uq = RichBLL(model, noise_variance=0.1, ridge=1e-3, progress=False).fit(x)
    assert "hadamard" in {step.route for step in RichBLL(model).plan(x).steps}
    J = jacobians(model, "6", (x,))
    A = torch.from_numpy(projection(J.phi_r[0], J.phi_m[0], ridge=1e-3))
    found = uq._state.projections[0].AtA(1e-3)[0]
    torch.testing.assert_close(found, A.mT @ A, rtol=1e-6, atol=1e-8 * float(found.abs().max()))


@given(gradients(), st.integers(1, N + 1), st.integers(1, N + 1), st.integers(1, N + 1), st.booleans(), st.booleans())
def test_energy_is_that_of_the_whole_matrix(
    made: tuple[Rowwise, Tensor], block: int, side: int, long: int, in_float32: bool, is_wide: bool
) -> None:
    """H = UᵀKU and tr K, in tiles of any shape; a float32 basis with K in float64 is no worse than its rounding."""
    rows, K = made
    U = randn(300, N, 4)
    U = U.float() if in_float32 else U
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram, "_BLOCK", block)
        patch.setattr(gram, "_SIDE", side)
        patch.setattr(gram, "_LONGER", (1, long))
        patch.setattr(gram, "_WIDE", 0 if is_wide else 10**6)
        H, trace = energy_in(rows, U, len(K), Alone(), torch.float64)
    torch.testing.assert_close(H, U.double().mT @ K @ U.double(), rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(trace, K.diagonal(dim1=1, dim2=2).sum(dim=1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("T", [1, 3, 32, 500, 5000])
@pytest.mark.parametrize("wide", [1, 2])
@pytest.mark.parametrize("long", [1, 3])
def test_products_between_positions_stay_small(T: int, wide: int, long: int) -> None:
    height, width = gram._tile_shape(T, wide, long)
    assert 1 <= height <= width
    assert height == 1 or T == 1 or height * width * T * T <= gram._PRODUCTS
    assert (height, width) == (gram._SIDE, long * gram._SIDE) or T > 1 or wide > 1


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
def test_parts_are_as_few_as_fit_and_of_about_one_size(start: int, size: int, most: int) -> None:
    parts = gram._parts(start, start + size, most)
    assert [number for part in parts for number in range(part.start, part.stop)] == list(range(start, start + size))
    assert len(parts) == -(-size // most)
    sizes = {part.stop - part.start for part in parts}
    assert not sizes or (max(sizes) <= most and max(sizes) - min(sizes) <= 1)


def test_the_width_of_K_is_what_it_reads_of_an_example() -> None:
    """By it strips are tall and have corners, or not."""
    outers = {("w", 0): [Outer(randn(0, 1, N, 2, 3), randn(1, 2, N, 2, 5))] * 2}
    assert Rowwise(outers, {("b", 0): Dense(randn(2, 2, N, 7))}).width == 2 * 2 * (3 + 5) + 7


def test_uses_of_other_precision() -> None:
    """A layer that is used once inside of an autocast."""
    uses = [Outer(randn(k, 2, N, 1, 3), randn(k + 5, 1, N, 1, 2)) for k in range(2)]
    short = Outer(uses[1].left.bfloat16(), uses[1].right.bfloat16())
    rows = Rowwise({("w", 0): [Outer(uses[0].left.float(), uses[0].right.float()), short]}, {})
    whole = literal(uses[0]) + literal(Outer(short.left.double(), short.right.double()))
    everyone = slice(0, N)
    found = rows.blocks(torch.float32).block(everyone, everyone)
    torch.testing.assert_close(found.double(), whole @ whole.mT, rtol=1e-4, atol=1e-4)


def twice(m, x):
    """One layer two times; a unit of the first is dead, and another one of the second."""
    h = torch.relu(m.a(x)) * torch.tensor([0.0, 1, 1, 1, 1, 1], dtype=x.dtype)
    return m.head(torch.relu(m.a(h)) * torch.tensor([1, 0.0, 1, 1, 1, 1], dtype=x.dtype))


def tied(m, x):
    """A matrix, and the same from the other side."""
    return m.head(torch.tanh(torch.tanh(functional.linear(x, m.a.weight)) @ m.a.weight))


@pytest.mark.parametrize("forward", [twice, tied])
def test_a_weight_that_is_used_twice(forward) -> None:
    """By K it is what it is by formed gradients, with outputs on either side and columns that are zero in one use."""
    torch.manual_seed(0)
    model = Forward(forward, a=nn.Linear(6, 6), head=nn.Linear(6, 2)).double()
    x = torch.randn(80, 6, dtype=torch.float64)
    found = []
    for route in ("hadamard", "explicit"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "cheapest_routes", lambda shapes, *_, route=route: {s.site: route for s in shapes})
            uq = RichBLL(model, noise_variance=0.1, ridge=0.0, parameters=lambda name: name == "a.weight").fit(x)
        found.append((uq._state.projections[0].trace_m, uq.predict(x).epistemic_variance))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rows", [[1], [1, 1], [4, 0, 2]])
def test_factors_side_by_side(rows: list[int]) -> None:
    """Of any number of rows and batches; torch.cat into a part of a tensor with one row writes nothing."""
    columns = [[randn(10 * k + n, 1, n, 2, d) for n in rows] for k, d in enumerate((3, 1))]
    found = side_by_side(columns)
    want = torch.stack(
        [torch.cat([*pair], dim=-1) for pair in zip(*(torch.cat(c, dim=1)[0] for c in columns), strict=True)]
    )
    assert torch.equal(found[0], want)
    assert torch.equal(side_by_side(columns[:1]), torch.cat(columns[0], dim=1))
