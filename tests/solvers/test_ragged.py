"""Sequences that are longer in one batch than in another, by every route."""

import numpy as np
import torch
from torch import Tensor, nn

from richbll import RichBLL
from tests.distributed_ranks import Fit
from tests.reference import dense


def test_products_of_examples_whose_sequences_differ_in_length() -> None:
    """Products of examples meet in blocks, so positions are filled up; `cross` takes batch by batch."""
    fit = Fit("tokens", 2, shards="ragged")
    case = fit.case()
    batches = [batch for shard in fit.batches(case) for batch in shard]
    assert {batch[0].shape[1] for batch in batches} == {1, 2}
    uq = RichBLL(case.model, noise_variance=0.2)
    assert "hadamard" in {step.route for step in uq.plan(batches[1:]).steps}
    got = uq.fit(batches).predict(case.test).epistemic_variance
    want = RichBLL(case.model, noise_variance=0.2, solver="cross").fit(batches).predict(case.test).epistemic_variance
    torch.testing.assert_close(got, want, rtol=1e-8, atol=0)


class Frames(nn.Module):
    """One step for each frame; with another number of them than on trial, rules do not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.see, self.keep = nn.Linear(400, 32), nn.Linear(32, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.read(x))
        h = z.new_zeros(len(x), 16)
        for t in range(x.shape[1]):
            h = torch.tanh(self.see(z[:, t]) + self.keep(h))
        return self.head(h)


def test_a_wide_layer_whose_rules_stop_to_hold() -> None:
    """What was kept by rules and what came without them meet in the same columns of a weight."""
    model = Frames().double().eval()
    xs = [torch.randn(70, frames, 400, dtype=torch.float64) for frames in (6, 6, 5)]
    uq = RichBLL(model, last_layer="head", solver="exact", noise_variance=0.1, ridge=1.0).fit(xs)
    got = uq._state.projections[0].AtA(1.0)
    J = [dense.jacobians(model, "head", (x,)) for x in xs]
    for k, AtA in enumerate(got):
        phi_r, phi_m = (np.concatenate([getattr(j, name)[k] for j in J]) for name in ("phi_r", "phi_m"))
        A = dense.projection(phi_r, phi_m, 1.0)
        torch.testing.assert_close(AtA, torch.tensor(A.T @ A), rtol=1e-9, atol=1e-9 * float(AtA.abs().max()))
