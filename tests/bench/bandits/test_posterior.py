"""The hand-written training step against autograd, and the fast posterior against the library's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from richbll import RichBLL
from richbll_bench.bandits.descent import Step
from richbll_bench.bandits.network import Network, with_action, with_every_action
from richbll_bench.bandits.posterior import gradient_kernel, gram, posterior_root, rows_of, transform
from richbll_bench.regression.network import rate

DOUBLE = torch.float64


def trained(width: int = 12, steps: int = 30) -> tuple[Network, torch.Tensor]:
    network, generator = Network(7, 3, width, dtype=DOUBLE), torch.Generator().manual_seed(0)
    x = torch.randn(80, 7, generator=generator, dtype=DOUBLE)
    for _ in range(steps):
        network.train_on(x, 3 * x[:, 0].sin() + x[:, 1], 1e-2, torch.ones(80, dtype=DOUBLE))
    return network, x


@settings(max_examples=8)
@given(st.integers(1, 40), st.floats(0.01, 100), st.sampled_from([1e-3, 1e-2]))
def test_a_step_is_that_of_autograd_and_adamw(num_rows: int, scale: float, learning_rate: float) -> None:
    network = Network(7, 1, width=10, dtype=DOUBLE)
    module = network.as_module()
    groups = [
        {"params": [p], "lr": learning_rate * rate(name, tuple(p.shape))} for name, p in module.named_parameters()
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=Step().weight_decay)
    generator = torch.Generator().manual_seed(num_rows)
    for _ in range(3):
        x = torch.randn(num_rows, 7, generator=generator, dtype=DOUBLE)
        y = scale * torch.randn(num_rows, generator=generator, dtype=DOUBLE)
        weights = 0.1 + torch.rand(num_rows, generator=generator, dtype=DOUBLE)
        network.train_on(x, y, learning_rate, weights)
        optimizer.zero_grad()
        (weights * (module(x)[:, 0] - y).square()).mean().backward()
        nn.utils.clip_grad_norm_(module.parameters(), Step().clip)
        gradient = torch.cat([p.grad.flatten() for p in module.parameters()])  # Adam would not see a block's factor
        np.testing.assert_allclose(torch.cat([g.flatten() for g in network._descent.gradients]), gradient, atol=1e-10)
        optimizer.step()
    want = nn.utils.parameters_to_vector(module.parameters()).detach()
    np.testing.assert_allclose(network.theta.numpy(), want.numpy(), atol=1e-12)
    np.testing.assert_allclose(network.outputs(x).numpy(), module(x)[:, 0].detach().numpy(), atol=1e-12)


def test_the_kernel_is_that_of_the_gradients() -> None:
    network, x = trained()
    module, one = network.as_module(), rows_of(network, x[:6])
    gradients = []
    for row in x[:6]:
        found = torch.autograd.grad(module(row[None]).sum(), list(module.parameters()))
        gradients.append(torch.cat([g.flatten() for g in found]))
    J = torch.stack(gradients)
    torch.testing.assert_close(gradient_kernel(network, one, one), J[:, :-13] @ J[:, :-13].mT)
    torch.testing.assert_close(one.phi, J[:, -13:])
    torch.testing.assert_close(one.phi @ network.last_weights, network.outputs(x[:6]))


@pytest.mark.parametrize("enrich", [True, False])
@pytest.mark.parametrize(("num_rows", "tau2"), [(80, 1.0), (40, 100.0)])
def test_the_posterior_is_that_of_the_library(enrich: bool, num_rows: int, tau2: float) -> None:
    """The projection from some rows and the posterior from all: `fit` on the former, `update` with the others."""
    network, x = trained()
    options = {"noise_variance": 0.3, "prior_variance": tau2, "ridge": 1e-2, "enrich": enrich}
    uq = RichBLL(network.as_module(), **options).fit(x[:num_rows])
    if num_rows < len(x):
        uq.update(x[num_rows:])
    L = transform(network, x[:num_rows], 1e-2) if enrich else torch.eye(13, dtype=DOUBLE)
    V, gamma = posterior_root(L, gram(network, x, lambda phi, rows: phi.new_full((len(phi),), 1 / 0.3)), tau2)
    new = torch.randn(9, 7, dtype=DOUBLE)
    Z = network.features(new) @ V
    np.testing.assert_allclose((Z @ Z.mT).numpy(), uq.joint(new).covariance[0].numpy(), rtol=1e-6, atol=1e-9)
    assert 0 < gamma < 13


def test_a_subsample_is_scaled_to_all_rows() -> None:
    network, x = trained()
    uq = RichBLL(network.as_module(), noise_variance=0.3, ridge=1e-2, subsample=40).fit(x)
    kept = uq._state.root  # of the same forty rows, whichever they are
    V, _ = posterior_root(torch.eye(13, dtype=DOUBLE), (kept.mT @ kept).view(13, 13) / 0.3, 1.0)
    plain = RichBLL(network.as_module(), noise_variance=0.3, enrich=False, subsample=40).fit(x)
    Z = network.features(x[:5]) @ V
    torch.testing.assert_close((Z * Z).sum(1), plain.predict(x[:5]).epistemic_variance[:, 0])


def test_weights_and_scales_of_the_features() -> None:
    network, x = trained()
    phi, weights = network.features(x), torch.rand(len(x), dtype=DOUBLE)
    torch.testing.assert_close(gram(network, x, lambda _, rows: weights[rows]), phi.mT @ (phi * weights[:, None]))
    # BLL with features times s is BLL with s² times the prior; Rich-BLL, without a ridge, does not notice s
    a, b = (transform(network, x, 1e-12, scale) for scale in (1.0, 0.01))
    stretch = torch.diag(torch.tensor([0.01] * 12 + [1.0], dtype=DOUBLE))
    rich = [a @ a.mT - torch.eye(13), stretch @ (b @ b.mT - torch.eye(13)) @ stretch]
    torch.testing.assert_close(*rich, rtol=1e-4, atol=1e-4)


def test_inputs_with_actions() -> None:
    x = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    every = with_every_action(x, 3)
    assert every.shape == (6, 5)
    torch.testing.assert_close(every[[1, 5]], with_action(x, torch.tensor([1, 2]), 3))
