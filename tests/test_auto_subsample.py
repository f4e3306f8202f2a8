"""subsample="auto": within 5 % of the full variance in at least 18 of 20 seeds."""

import pytest
import torch
from torch import nn

from richbll import RichBLL


@pytest.mark.parametrize(("num_inputs", "activation"), [(2, nn.ReLU), (8, nn.Tanh), (8, nn.ReLU)])
def test_auto_stays_within_five_per_cent(num_inputs: int, activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    hidden = [nn.Linear(num_inputs, 12), activation(), nn.Linear(12, 12), activation()]
    model = nn.Sequential(*hidden, nn.Linear(12, 1))
    x, new = torch.randn(4000, num_inputs), torch.randn(500, num_inputs)
    full = RichBLL(model, noise_variance=0.1).fit(x).predict(new).epistemic_variance.mean()
    within, sizes = 0, []
    for seed in range(20):
        uq = RichBLL(model, noise_variance=0.1, subsample="auto", seed=seed).fit(x)
        sizes.append(uq.subsample_size)
        within += int(abs(uq.predict(new).epistemic_variance.mean() / full - 1) < 0.05)
    assert within >= 18
    assert min(sizes) < 4000 or num_inputs == 2  # and it does save work where it can


def test_auto_is_everything_when_there_is_little() -> None:
    model, x = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(200, 2)
    auto = RichBLL(model, noise_variance=0.1, subsample="auto").fit(x)
    assert auto.subsample_size == 200
    full = RichBLL(model, noise_variance=0.1).fit(x)
    torch.testing.assert_close(auto.predict(x).std, full.predict(x).std)


def test_auto_looks_at_scales_however_they_are_given() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(3000, 2)
    sizes = {}
    for noise in (1e-3, 1e5):
        for given in (noise, torch.tensor([noise])):
            uq = RichBLL(model, noise_variance=given, subsample="auto").fit(x)
            assert sizes.setdefault(noise, uq.subsample_size) == uq.subsample_size
    assert sizes[1e5] <= sizes[1e-3]  # where the prior decides, few rows will do
