"""K block by block: against literal inner products of gradients, whatever forms and uses they have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from richbll.network.ranks import Alone
from richbll.network.structure import Dense, Outer
from richbll.solvers.routes import gram
from richbll.solvers.routes.gram import Rowwise, energy_in

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
        d_left, d_right, side = draw(sizes), draw(sizes), draw(st.sampled_from(["left", "right", "neither"]))
        uses = []
        for use in range(draw(st.integers(1, 2))):
            T, seed = draw(sizes), 10 * number + use
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


@given(gradients(), st.integers(1, N + 1), st.integers(0, N + 1), st.booleans())
def test_energy_is_that_of_the_whole_matrix(
    made: tuple[Rowwise, Tensor], block: int, longer: int, in_float32: bool
) -> None:
    """H = UᵀKU and tr K, in blocks of any shape; a float32 basis with K in float64 is no worse than its rounding."""
    rows, K = made
    U = randn(300, N, 4)
    U = U.float() if in_float32 else U
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram, "_STRIP", (2 * block, 2 * (block + longer)))
        H, trace = energy_in(rows, U, len(K), Alone(), torch.float64)
    torch.testing.assert_close(H, U.double().mT @ K @ U.double(), rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(trace, K.diagonal(dim1=1, dim2=2).sum(dim=1), rtol=1e-12, atol=0)
