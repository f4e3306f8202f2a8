"""Rows whose moments are formed together are counted once each, whatever batches they came in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from richbll.network.ranks import Alone
from richbll.solvers import solution
from richbll.solvers.solution import AddedMoments


class _Stream:
    num_data = None
    ranks = Alone()


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    without=st.integers(-1, 5),
    weighted=st.booleans(),
    together=st.integers(1, 12),
)
def test_as_batch_by_batch(sizes: list[int], without: int, weighted: bool, together: int) -> None:
    """One batch may lack its targets: then no sum of residuals is known."""
    adding, phis, residuals, weights = AddedMoments(), [], [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solution, "_TOGETHER", together)
        for k, n in enumerate(sizes):
            phis.append(randn(n, 3, seed=k))
            residuals.append(None if k == without else randn(n, 2, seed=100 + k))
            weights.append(randn(n, 2, seed=200 + k).abs() if weighted else None)
            adding.add_rows(phis[-1], weights[-1], residuals[-1])
        found = adding.total(_Stream(), [adding.shapes()])  # type: ignore[arg-type]
    phi = torch.cat(phis)
    assert found.num_rows == len(phi)
    torch.testing.assert_close(found.gram_projection, phi.mT @ phi)
    if without in range(len(sizes)):
        assert found.residual_sq is None
    else:
        assert found.residual_sq is not None
        torch.testing.assert_close(found.residual_sq, torch.cat(residuals).square().sum(dim=0))
    if weighted:
        assert found.gram_weighted is not None
        torch.testing.assert_close(found.gram_weighted, torch.einsum("ng,ni,nj->gij", torch.cat(weights), phi, phi))


def test_rows_and_residuals_wait_until_there_are_enough_of_them(monkeypatch) -> None:
    monkeypatch.setattr(solution, "_TOGETHER", 20)
    adding, waiting = AddedMoments(), []
    for k in range(4):
        adding.add_rows(randn(2, 3, seed=k), None, randn(2, 1, seed=k))  # 8 elements each
        waiting.append("num_rows" not in adding.state or int(adding.state["num_rows"]))
    assert waiting == [True, True, 6, 6]
