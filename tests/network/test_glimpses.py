"""What a forward pass keeps of the outputs of its calls, to compare some rows with the same examples alone."""

import pytest
import torch
from torch import nn

from richbll.network.batches import Batch
from richbll.network.capture import _GLIMPSED, Capture, observed

WIDTH, N = 20_000, 8


@pytest.mark.parametrize("layout", [0, 1])
def test_few_values_of_the_rows_are_kept_and_nothing_else(layout: int) -> None:
    layer = nn.Linear(3, WIDTH)
    x = torch.randn(N, 3) if layout == 0 else torch.randn(1, N, 3)  # examples along the second dimension
    model = layer if layout == 0 else nn.Sequential(layer, _Swapped())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rows = torch.tensor([7, 0, 3])
    capture = Capture(names, set(), N, [layout], rows)
    observed(model, Batch((x,), {}, None, N, (True,)), capture)
    (call,) = capture.calls
    assert call.glimpse is not None
    assert not call.more_to_see
    every = WIDTH // _GLIMPSED | 1
    want = layer(x.view(N, 3)).detach()[rows, ::every]
    torch.testing.assert_close(call.glimpse, want)
    assert call.glimpse.untyped_storage().nbytes() == 4 * want.numel()  # no view that keeps whole rows


def test_rows_that_are_all_the_same_among_others_are_told() -> None:
    layer, x = nn.Linear(3, WIDTH), torch.zeros(N, 3)
    names = {id(parameter): name for name, parameter in layer.named_parameters()}
    for differs in (False, True):
        x[5] = 1.0 if differs else 0.0
        capture = Capture(names, set(), N, [0], torch.tensor([7, 0, 3]))
        observed(layer, Batch((x,), {}, None, N, (True,)), capture)
        assert capture.calls[0].more_to_see == differs


class _Swapped(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z.squeeze(0)
