"""Sequences that are longer in one batch than in another, by every route."""

import torch

from richbll import RichBLL
from tests.distributed_ranks import Fit


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
