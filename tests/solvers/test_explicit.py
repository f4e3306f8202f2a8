"""C = Φ^mᵀU of kept gradients, in ranges that stay in fast memory, against what the whole gradients give."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from richbll.network import structure
from richbll.network.ranks import Alone
from richbll.network.records import SiteShape
from richbll.network.structure import Dense, Outer, Windows
from richbll.solvers.routes import explicit
from richbll.solvers.routes import ranges as cutting
from richbll.solvers.routes.explicit import kept_energy
from richbll.solvers.routes.ranges import held_ranges

RHO = 3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_linear_sites_are_cut_small_and_others_are_not(monkeypatch) -> None:
    monkeypatch.setattr(cutting, "_HELD", 60)
    monkeypatch.setattr(cutting, "_ROWS", 3)
    linear = SiteShape(("w", 0), 40, "linear", widths=(8, 5))
    others = [SiteShape((kind, 0), 40, kind, widths=(8, 5)) for kind in ("convolution", "vector", "general")]
    found = held_ranges([linear, *others], directions=6, most=100)
    cut = [(part.start, part.stop) for part in found if part.shape is linear]
    assert cut == [(start, start + 10) for start in range(0, 40, 10)]  # whole rows of 5, at most 60 / 6 elements
    assert [(part.start, part.stop) for part in found if part.shape is not linear] == [(0, 40)] * 3
    assert all(part.stop - part.start <= 5 for part in held_ranges([linear, *others], directions=6, most=5))
    assert (
        len(held_ranges([linear], directions=1000, most=100)) == 8
    )  # never less than a row, which would be formed anew
    many = replace(linear, positions=7)
    assert [part.stop - part.start for part in held_ranges([many], directions=1000, most=100)] == [15, 15, 10]


def test_ranges_by_column_are_whole_columns_of_about_one_size(monkeypatch) -> None:
    monkeypatch.setattr(cutting, "_CHANNELS", 2)
    weight = SiteShape(("w", 0), 16 * 9 * 30, "convolution", positions=64, widths=(16, 30 * 9), columns=30)
    row = 16 * 9
    cut = held_ranges([weight], directions=1, most=10**6)
    assert [(part.start, part.stop) for part in cut] == [(0, weight.size)]
    monkeypatch.setattr(cutting, "_HELD", 4 * row)
    assert [part.stop - part.start for part in held_ranges([weight], directions=1, most=10**6)] == [4 * row] * 7 + [
        2 * row
    ]
    many = replace(weight, positions=256)  # convolved: fewer ranges
    assert [part.stop - part.start for part in held_ranges([many], directions=1, most=10**6)] == [8 * row] * 3 + [
        6 * row
    ]
    assert {part.stop - part.start for part in held_ranges([weight], directions=100, most=10**6)} == {2 * row}
    small = held_ranges([weight], directions=1, most=row - 1)  # a column does not fit: rows, or parts of them
    assert not any(part.by_column for part in small)
    assert sum(part.stop - part.start for part in small) == weight.size


@pytest.mark.parametrize("held", [1, RHO * 30, 10**6])
@pytest.mark.parametrize("c", [1, 2])
@pytest.mark.parametrize("many_positions", [1, 256])
def test_energy_of_columns_is_that_of_the_weight(held: int, c: int, many_positions: int, monkeypatch) -> None:
    """A convolution, unfolded or convolved by few examples, and a linear layer with more inputs than outputs."""
    monkeypatch.setattr(cutting, "_HELD", held)
    monkeypatch.setattr(cutting, "_CHANNELS", 2)
    monkeypatch.setattr(structure, "MANY_POSITIONS", many_positions)
    monkeypatch.setattr(cutting, "MANY_POSITIONS", many_positions)
    monkeypatch.setattr(structure, "_CONVOLVED", 300)
    monkeypatch.setattr(structure, "_SMALL_WINDOW", 0)
    wide = SiteShape(("w", 0), 28, "linear", positions=2, widths=(4, 7), columns=7)
    conv = SiteShape(("k", 0), 3 * 5 * 6, "convolution", positions=20, widths=(3, 30), columns=5)
    counts = (4, 1, 6)
    outers = [Outer(randn(c, n, 2, 4), randn(1, n, 2, 7)) for n in counts]
    windows = [Windows(randn(1, n, 5, 4, 6), randn(c, n, 3, 3, 6), (2, 3), (1, 1), (1, 1), 1, (0, 1)) for n in counts]
    U = [randn(n, RHO) for n in counts]
    parts = [{wide.site: [outer], conv.site: [one]} for outer, one in zip(outers, windows, strict=True)]
    ranges = held_ranges([wide, conv], c * RHO, 10**6)
    assert all(part.by_column for part in ranges)
    H, norms = kept_energy(parts, ranges, torch.cat(U), c, Alone())
    linear = torch.cat([torch.einsum("cnti,ntj->cnij", o.left, o.right[0]).flatten(2) for o in outers], dim=1)
    phi_m = torch.cat([linear, torch.cat([_by_autograd(one) for one in windows], dim=1)], dim=2)
    C = torch.einsum("cnp,nr->cpr", phi_m, torch.cat(U))
    torch.testing.assert_close(H, C.mT @ C, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(norms, phi_m.square().sum(dim=2), rtol=1e-10, atol=0)


@pytest.mark.parametrize("c", [1, 2])
def test_gradients_without_a_rule_are_taken_by_column_too(c: int, monkeypatch) -> None:
    """Rules may stop to hold on the way: what comes then is dense, and meets the same ranges."""
    monkeypatch.setattr(cutting, "_HELD", RHO * 4)
    monkeypatch.setattr(cutting, "_CHANNELS", 1)
    wide = SiteShape(("w", 0), 28, "linear", widths=(4, 7), columns=7)
    conv = SiteShape(("k", 0), 3 * 5 * 6, "convolution", positions=20, widths=(3, 30), columns=5)
    ranges = held_ranges([wide, conv], c * RHO, 10**6)
    assert len(ranges) > 4
    assert all(part.by_column for part in ranges)
    outer = Outer(randn(c, 4, 2, 4), randn(1, 4, 2, 7))
    windows = Windows(randn(1, 4, 5, 4, 6), randn(c, 4, 3, 3, 6), (2, 3), (1, 1), (1, 1), 1, (0, 1))
    later = randn(c, 3, 28), randn(c, 3, 90)
    parts = [
        {wide.site: [outer], conv.site: [windows]},
        {wide.site: [Dense(later[0])], conv.site: [Dense(later[1])]},
    ]
    U = [randn(4, RHO), randn(3, RHO)]
    H, norms = kept_energy(parts, ranges, torch.cat(U), c, Alone())
    early = torch.einsum("cnti,ntj->cnij", outer.left, outer.right[0]).flatten(2), _by_autograd(windows)
    phi_m = torch.cat([torch.cat(early, dim=2), torch.cat(later, dim=2)], dim=1)
    C = torch.einsum("cnp,nr->cpr", phi_m, torch.cat(U))
    torch.testing.assert_close(H, C.mT @ C, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(norms, phi_m.square().sum(dim=2), rtol=1e-10, atol=0)


def _by_autograd(one: Windows) -> Tensor:
    """∂⟨g, conv(x)⟩/∂weight, example by example."""  # (c, n, elements)
    weight = torch.zeros(3, 5, *one.kernel, dtype=torch.float64, requires_grad=True)
    rows = []
    for g in one.g:
        for k in range(len(g)):
            z = torch.nn.functional.conv2d(one.x[0, k : k + 1], weight, padding=one.padding)
            rows.append(torch.autograd.grad((z[0] * g[k]).sum(), weight)[0].flatten())
    return torch.stack(rows).view(len(one.g), len(one.x[0]), -1)


@pytest.mark.parametrize("held", [1, RHO * 5, RHO * 12, 10**6])
@pytest.mark.parametrize("c", [1, 2])
def test_energy_is_the_same_however_it_is_cut(held: int, c: int, monkeypatch) -> None:
    """H = UᵀΦ^mΦ^mᵀU, with Φ^m written out, and the squared norms of its rows."""
    monkeypatch.setattr(cutting, "_HELD", held)
    monkeypatch.setattr(explicit, "_SQUARED", 2)
    shape = SiteShape(("w", 0), 35, "linear", positions=2, widths=(7, 5))
    outers = [Outer(randn(c, n, 2, 7), randn(1, n, 2, 5)) for n in (4, 1, 6)]
    U = [randn(n, RHO) for n in (4, 1, 6)]
    ranges = held_ranges([shape], c * RHO, 10**6)
    H, norms = kept_energy([{shape.site: [outer]} for outer in outers], ranges, torch.cat(U), c, Alone())
    phi_m = torch.cat([torch.einsum("cnti,ntj->cnij", o.left, o.right[0]).flatten(2) for o in outers], dim=1)
    C = torch.einsum("cnp,nr->cpr", phi_m, torch.cat(U))
    torch.testing.assert_close(H, C.mT @ C, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(norms, phi_m.square().sum(dim=2), rtol=1e-10, atol=0)


def test_nothing_explicit_is_no_energy() -> None:
    """Where all weights have changed hands."""
    H, norms = kept_energy([{}], [], randn(4, RHO), 2, Alone())
    assert torch.equal(H, torch.zeros(2, RHO, RHO, dtype=torch.float64))
    assert torch.equal(norms, torch.zeros(2, 4, dtype=torch.float64))
