"""Moments add up, and refuse what does not belong together."""

import pytest
import torch

from richbll.core.moments import batch_moments
from richbll.errors import ShapeError


def test_shards_add_up_to_one_pass() -> None:
    phi, f, y = torch.randn(30, 4), torch.randn(30, 2), torch.randn(30, 2)
    whole = batch_moments(phi, residuals=y - f)
    parts = batch_moments(phi[:11], residuals=(y - f)[:11]) + batch_moments(phi[11:], residuals=(y - f)[11:])
    torch.testing.assert_close(parts.gram_projection, whole.gram_projection)
    torch.testing.assert_close(parts.residual_sq, whole.residual_sq)
    assert (parts.num_rows, parts.num_data, parts.row_weight) == (30, 30, 1.0)
    assert parts.gram_projection.dtype == torch.float64


def test_a_part_without_targets_leaves_no_residuals() -> None:
    phi, e = torch.randn(5, 3), torch.randn(5, 1)
    assert (batch_moments(phi, residuals=e) + batch_moments(phi)).residual_sq is None


def test_gram_posterior_is_scaled_and_gram_projection_is_not() -> None:
    from dataclasses import replace

    moments = replace(batch_moments(torch.randn(5, 3)), num_data=20)
    torch.testing.assert_close(moments.gram_posterior[0], 4 * moments.gram_projection)


def test_weights_make_one_gram_matrix_per_posterior() -> None:
    phi, weights = torch.randn(30, 4).double(), torch.rand(30, 3).double()
    weights[:7] = 0
    moments = batch_moments(phi[:11], weights[:11]) + batch_moments(phi[11:], weights[11:])
    want = torch.einsum("ng,ni,nj->gij", weights, phi, phi)
    torch.testing.assert_close(moments.gram_posterior, want)
    torch.testing.assert_close(moments.gram_projection, phi.mT @ phi)


def test_different_widths_are_refused() -> None:
    with pytest.raises(ShapeError, match="3 and 4 features"):
        batch_moments(torch.randn(5, 3)) + batch_moments(torch.randn(5, 4))
