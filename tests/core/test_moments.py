"""Moments add up, and refuse what does not belong together."""

import pytest
import torch

from richbll.core.moments import batch_moments
from richbll.errors import ShapeError


def test_shards_add_up_to_one_pass() -> None:
    phi, f, y = torch.randn(30, 4), torch.randn(30, 2), torch.randn(30, 2)
    whole = batch_moments(phi, f, y)
    parts = batch_moments(phi[:11], f[:11], y[:11]) + batch_moments(phi[11:], f[11:], y[11:])
    torch.testing.assert_close(parts.gram_projection, whole.gram_projection)
    torch.testing.assert_close(parts.residual_sq, whole.residual_sq)
    assert (parts.num_rows, parts.num_data, parts.row_weight) == (30, 30, 1.0)
    assert parts.gram_projection.dtype == torch.float64


def test_a_part_without_targets_leaves_no_residuals() -> None:
    phi, f = torch.randn(5, 3), torch.randn(5, 1)
    assert (batch_moments(phi, f, f) + batch_moments(phi, f, None)).residual_sq is None


def test_gram_posterior_is_scaled_and_gram_projection_is_not() -> None:
    from dataclasses import replace

    moments = replace(batch_moments(torch.randn(5, 3), torch.randn(5, 1), None), num_data=20)
    torch.testing.assert_close(moments.gram_posterior, 4 * moments.gram_projection)


def test_different_widths_are_refused() -> None:
    with pytest.raises(ShapeError, match="3 and 4 features"):
        batch_moments(torch.randn(5, 3), torch.randn(5, 1), None) + batch_moments(
            torch.randn(5, 4), torch.randn(5, 1), None
        )
