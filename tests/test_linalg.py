"""Factorisations against LAPACK's, on matrices whose squares lose half of the digits."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from richbll import linalg
from richbll.errors import NumericalError
from richbll.linalg import columns, eigh, gram, lower_product, refined_rotation, right_singular, svd, used_columns


def graded(rows: int, columns: int, decades: float, seed: int) -> Tensor:
    """Singular values from 1 down, evenly on a logarithmic scale."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(n, columns, dtype=torch.float64, generator=generator)).Q for n in (rows, columns)
    )
    return left * torch.logspace(0, -decades, columns, dtype=torch.float64) @ right.mT


@pytest.fixture(autouse=True, params=["as wide", "as narrow"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide matrices go another way: small ones are sent both."""
    if request.param == "as wide":
        for name, few in (("_NARROW", 2), ("_STEP", 3), ("_GLIMPSE", 2)):
            monkeypatch.setattr(linalg, name, few)


@given(
    columns=st.integers(1, 40),
    more=st.integers(0, 20),
    decades=st.floats(0, 9),
    dead=st.integers(0, 5),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_right_singular_is_lapacks(columns: int, more: int, decades: float, dead: int, seed: int) -> None:
    """Values to seven digits over nine decades, where a Gram matrix alone has none left below 1e-8."""
    generator = torch.Generator().manual_seed(seed)
    rows = columns + dead + more
    matrix = torch.cat([graded(rows, columns, decades, seed), torch.zeros(rows, dead)], dim=1)
    matrix = matrix[:, torch.randperm(columns + dead, generator=generator)]
    s, Ot = right_singular("a test", matrix)
    want = torch.cat([torch.linalg.svdvals(matrix[:, (matrix != 0).any(dim=0)]), torch.zeros(dead)])
    torch.testing.assert_close(s, want, rtol=1e-6, atol=1e-14)
    torch.testing.assert_close(Ot @ Ot.mT, torch.eye(columns + dead, dtype=torch.float64), atol=1e-11, rtol=0)
    product = matrix @ Ot.mT  # orthogonal columns of lengths s, small ones too
    lengths = torch.linalg.vector_norm(product, dim=0)
    torch.testing.assert_close(lengths, s, rtol=1e-6, atol=1e-14)
    unit = product[:, :columns] / lengths[:columns]
    assert float((unit.mT @ unit - torch.eye(columns)).abs().max()) < 1e-5


@given(st.integers(1, 40), st.floats(0, 9), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_lower_triangle_is_a_matrix_like_any_other(width: int, decades: float, seed: int, several: bool) -> None:
    """Its square, products and singular values, without what is above the diagonal."""
    triangle = torch.linalg.qr(graded(width + 3, width, decades, seed), mode="r").R.mT.contiguous()
    torch.testing.assert_close(gram(triangle, is_lower=True), triangle.mT @ triangle, rtol=0, atol=1e-14)
    triangles = torch.stack([triangle, 2 * triangle]) if several else triangle
    V = torch.randn(width, 4, dtype=torch.float64)
    torch.testing.assert_close(lower_product(triangles, V.expand(*triangles.shape[:-2], -1, -1)), triangles @ V)
    s, Ot = right_singular("a test", triangles, is_lower=True)
    torch.testing.assert_close(s, torch.linalg.svdvals(triangles), rtol=1e-6, atol=1e-14)
    lengths = torch.linalg.vector_norm(triangles @ Ot.mT, dim=-2)
    torch.testing.assert_close(lengths, s, rtol=1e-6, atol=1e-14)
    identity = torch.eye(width, dtype=torch.float64).expand_as(triangles)
    torch.testing.assert_close(Ot @ Ot.mT, identity, atol=1e-11, rtol=0)


def test_right_singular_of_several_matrices_and_of_nothing() -> None:
    several = torch.stack([graded(12, 8, 7, 0), graded(12, 8, 0.5, 1)])
    s, _ = right_singular("a test", several)
    torch.testing.assert_close(s, torch.linalg.svdvals(several), rtol=1e-6, atol=0)
    s, Ot = right_singular("a test", torch.zeros(4, 4, dtype=torch.float64))
    assert torch.equal(s, torch.zeros(4, dtype=torch.float64))
    torch.testing.assert_close(Ot @ Ot.mT, torch.eye(4, dtype=torch.float64))


def test_a_rotation_of_orthonormal_columns_does_nothing() -> None:
    s = torch.logspace(0, -6, 10, dtype=torch.float64)
    rotation, refined = refined_rotation("a test", s, torch.eye(10, dtype=torch.float64)[:, 6:])
    torch.testing.assert_close(refined, s)
    turned = rotation.applied(torch.eye(10, dtype=torch.float64))
    torch.testing.assert_close(turned.abs(), torch.eye(10, dtype=torch.float64))


@pytest.mark.parametrize("width", [1, 255, 256, 257, 700])
@pytest.mark.parametrize("dead", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_with_itself(width: int, dead: float, dtype: torch.dtype) -> None:
    matrix = torch.randn(30, width, dtype=dtype) * (torch.rand(width) >= dead)
    for parts in ([matrix], [matrix[:7], matrix[7:7], matrix[7:]]):
        found = gram(*parts)  # in float64 whatever it is given
        torch.testing.assert_close(found, matrix.double().mT @ matrix.double(), rtol=1e-12, atol=1e-12)
        assert torch.equal(found, found.mT)


def test_a_column_that_is_zero_in_one_part_only_counts() -> None:
    parts = [torch.zeros(4, 300, dtype=torch.float64) for _ in range(2)]
    parts[0][:, :40], parts[1][:, 30:60] = torch.randn(4, 40), torch.randn(4, 30)
    whole = torch.cat(parts)
    torch.testing.assert_close(gram(*parts), whole.mT @ whole)


@pytest.mark.parametrize("factorise", [eigh, svd])
def test_what_is_not_finite_is_named(factorise: object) -> None:
    assert callable(factorise)
    with pytest.raises(NumericalError, match=r"the thing \(3 × 3, float64, entries not finite\)"):
        factorise("the thing", torch.full((3, 3), torch.nan, dtype=torch.float64))


@given(st.integers(0, 9), st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_used_columns_are_those_with_anything_in_them(rows: int, width: int, seed: int) -> None:
    """Also where the first rows do not show it, and where what is in them adds up to zero."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randint(-1, 2, (rows, width), generator=generator).double()
    matrix *= torch.randint(0, 2, (rows, 1), generator=generator)
    want = [k for k in range(width) if any(matrix[i, k] != 0 for i in range(rows))]
    used = used_columns(matrix)
    assert used.tolist() == want
    assert torch.equal(columns(matrix, used), matrix[:, want])
    lead = matrix.view(1, rows, 1, width)
    assert torch.equal(columns(lead, used), lead[..., want])


def test_what_is_turned_is_laid_out_as_a_file_has_it() -> None:
    """So that products with it are the same to the bit after it was written and read."""
    matrix = torch.randn(2, 6, 5, dtype=torch.float64).mT
    for lead in ((2,), ()):  # a rotation for each matrix, or one for all
        upper, left, corner = (torch.randn(*lead, *shape, dtype=torch.float64) for shape in ((4, 2), (2, 4), (2, 2)))
        identity = torch.eye(4, dtype=torch.float64).expand(*lead, 4, 4)
        O = torch.cat([torch.cat([identity, upper], dim=-1), torch.cat([left, corner], dim=-1)], dim=-2)  # noqa: E741
        rotation = linalg.Rotation(upper, left, corner)
        found = rotation.applied(matrix)
        assert found.is_contiguous()
        torch.testing.assert_close(found, matrix @ O)
        s, refined = torch.rand(2, *lead, 6, dtype=torch.float64) + 1
        refined[..., :4] = s[..., :4]
        want = s.unsqueeze(-1) * O / refined.unsqueeze(-2)
        torch.testing.assert_close(rotation.between(s, refined).applied(matrix), matrix @ want)
