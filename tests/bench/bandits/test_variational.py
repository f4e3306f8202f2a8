"""The hand-written step of the variational network against autograd of the objective that is the package's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from richbll_bench.bandits.descent import Step
from richbll_bench.bandits.variational import Variational
from richbll_bench.regression.network import rate

DOUBLE = torch.float64


@settings(max_examples=8)
@given(st.integers(1, 30), st.floats(0.01, 100), st.integers(30, 10**5), st.booleans())
def test_a_step_is_that_of_autograd_and_adamw(num_rows: int, scale: float, in_all: int, is_plain: bool) -> None:
    network = Variational(7, 1, noise_std=0.7, width=10, dtype=DOUBLE)
    module = network.as_module()
    groups = [
        {
            "params": [p],
            "lr": 1e-2 * rate(name.removeprefix("hidden."), tuple(p.shape)),
            "weight_decay": 0.0 if name.startswith("head.") else Step().weight_decay,
        }
        for name, p in module.named_parameters()
    ]
    optimizer = torch.optim.AdamW(groups)
    generator = torch.Generator().manual_seed(num_rows)
    for _ in range(3):
        x = torch.randn(num_rows, 7, generator=generator, dtype=DOUBLE)
        y = scale * torch.randn(num_rows, generator=generator, dtype=DOUBLE)
        weights = torch.rand(num_rows, generator=generator, dtype=DOUBLE)
        weights = torch.ones_like(weights) if is_plain else weights
        network.train_on(x, y, 1e-2, weights, in_all)
        optimizer.zero_grad()
        _negative_elbo(module, x, y, weights, in_all).backward()
        nn.utils.clip_grad_norm_(module.parameters(), Step().clip)
        gradient = torch.cat([p.grad.flatten() for p in module.parameters()])  # Adam would not see a block's factor
        np.testing.assert_allclose(torch.cat([g.flatten() for g in network._descent.gradients]), gradient, atol=1e-9)
        optimizer.step()
    want = nn.utils.parameters_to_vector(module.parameters()).detach()
    np.testing.assert_allclose(network.theta.numpy(), want.numpy(), atol=1e-12)
    mean, Z = network.moments(x)
    np.testing.assert_allclose(network.outputs(x).numpy(), mean.numpy(), atol=1e-12)
    with torch.no_grad():
        want_mean, want_variance, _ = module(x)
    np.testing.assert_allclose(mean.numpy(), want_mean[:, 0].numpy(), atol=1e-12)
    np.testing.assert_allclose(Z.square().sum(1).numpy(), want_variance[:, 0].numpy(), rtol=1e-8)


def _negative_elbo(module, x, y, weights, in_all):
    """Row by row, each by its weight."""
    expected = torch.stack([w * module(row[None], t[None, None])[0] for row, t, w in zip(x, y, weights, strict=True)])
    _, kl, noise_prior = module(x, y[:, None])
    return expected.mean() + (kl - noise_prior) / in_all


def test_the_caller_s_random_numbers_are_not_touched() -> None:
    torch.manual_seed(0)
    want = torch.rand(1)
    torch.manual_seed(0)
    Variational(3, 5, width=4)
    assert float(torch.rand(1)) == pytest.approx(float(want))
