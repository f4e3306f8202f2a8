"""U = Φ^rV: strong directions may be formed in float32, and nothing of the features' rank is lost by it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from richbll.core.projection import spectrum_of
from richbll.solvers.exact import _STRONG, _basis


def features(num_rows: int, width: int, decades: float, seed: int) -> torch.Tensor:
    """float32, with singular values over so many decades, and every fifth feature dead."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, width, generator=generator, dtype=torch.float64) for n in (num_rows, width))
    scale = torch.logspace(0, -decades, width, dtype=torch.float64)
    phi = (torch.linalg.qr(left).Q * scale) @ torch.linalg.qr(right).Q.mT
    phi[:, ::5] = 0
    return phi.float()


@given(decades=st.floats(0, 9), seed=st.integers(0, 10**6), size=st.sampled_from([1, 7, 60]))
def test_basis_is_that_of_float64(decades: float, seed: int, size: int) -> None:
    phi = features(60, 20, decades, seed)
    gram = phi.double().mT @ phi.double()
    spectrum = spectrum_of(gram, len(phi), phi.dtype)
    U, UtU = _basis(list(phi.split(size)), spectrum, gram.diagonal() > 0, torch.float32)
    truth = phi.double() @ spectrum.rough_whitener
    assert {u.dtype for u in U} == {torch.float32}
    assert UtU.dtype == torch.float64
    rounding = 20 * torch.finfo(torch.float32).eps / _STRONG
    assert float((torch.cat(U) - truth).norm(dim=0).max()) < rounding
    torch.testing.assert_close(UtU, truth.mT @ truth[:, spectrum.num_sure :], rtol=1e-6, atol=1e-12)


def test_weak_directions_need_float64() -> None:
    """What would be lost if all products were formed in float32: the test above can fail."""
    phi = features(60, 20, 5, 0)
    gram = phi.double().mT @ phi.double()
    spectrum = spectrum_of(gram, len(phi), phi.dtype)
    coarse = phi @ spectrum.rough_whitener.float()
    truth = phi.double() @ spectrum.rough_whitener
    weakest = (coarse - truth).norm(dim=0).max()
    assert weakest > 20 * torch.finfo(torch.float32).eps / _STRONG


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    phi = features(60, 20, 2, 1).to(dtype)
    gram = phi.double().mT @ phi.double()
    spectrum = spectrum_of(gram, len(phi), dtype)
    working = torch.promote_types(dtype, torch.float32)
    (U,), _ = _basis([phi], spectrum, gram.diagonal() > 0, working)
    assert U.dtype == working
    tolerance = 1e-10 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(U.double(), phi.double() @ spectrum.rough_whitener, rtol=0, atol=tolerance)
