"""C = Φ^mᵀU of kept gradients, in ranges that stay in fast memory, against what the whole gradients give."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from richbll.network.ranks import Alone
from richbll.network.records import SiteShape
from richbll.network.structure import Outer
from richbll.solvers.routes import explicit
from richbll.solvers.routes.explicit import held_ranges, kept_energy

RHO = 3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_linear_sites_are_cut_small_and_others_are_not(monkeypatch) -> None:
    monkeypatch.setattr(explicit, "_HELD", 60)
    monkeypatch.setattr(explicit, "_ROWS", 3)
    linear = SiteShape(("w", 0), 40, "linear", widths=(8, 5))
    others = [SiteShape((kind, 0), 40, kind, widths=(8, 5)) for kind in ("convolution", "vector", "general")]
    found = held_ranges([linear, *others], columns=6, most=100)
    cut = [(part.start, part.stop) for part in found if part.shape is linear]
    assert cut == [(start, start + 10) for start in range(0, 40, 10)]  # whole rows of 5, at most 60 / 6 elements
    assert [(part.start, part.stop) for part in found if part.shape is not linear] == [(0, 40)] * 3
    assert all(part.stop - part.start <= 5 for part in held_ranges([linear, *others], columns=6, most=5))
    assert len(held_ranges([linear], columns=1000, most=100)) == 8  # never less than a row, which would be formed anew
    many = replace(linear, positions=7)
    assert [part.stop - part.start for part in held_ranges([many], columns=1000, most=100)] == [15, 15, 10]


@pytest.mark.parametrize("held", [1, RHO * 5, RHO * 12, 10**6])
@pytest.mark.parametrize("c", [1, 2])
def test_energy_is_the_same_however_it_is_cut(held: int, c: int, monkeypatch) -> None:
    """H = UᵀΦ^mΦ^mᵀU, with Φ^m written out, and the squared norms of its rows."""
    monkeypatch.setattr(explicit, "_HELD", held)
    monkeypatch.setattr(explicit, "_SQUARED", 2)
    shape = SiteShape(("w", 0), 35, "linear", positions=2, widths=(7, 5))
    outers = [Outer(randn(c, n, 2, 7), randn(1, n, 2, 5)) for n in (4, 1, 6)]
    U = [randn(n, RHO) for n in (4, 1, 6)]
    ranges = held_ranges([shape], c * RHO, 10**6)
    H, norms = kept_energy([{shape.site: [outer]} for outer in outers], ranges, U, c, Alone())
    phi_m = torch.cat([torch.einsum("cnti,ntj->cnij", o.left, o.right[0]).flatten(2) for o in outers], dim=1)
    C = torch.einsum("cnp,nr->cpr", phi_m, torch.cat(U))
    torch.testing.assert_close(H, C.mT @ C, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.cat(norms, dim=1), phi_m.square().sum(dim=2), rtol=1e-10, atol=0)
