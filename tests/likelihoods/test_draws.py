"""Draws in parts are the same draws, and what is taken of them is the same too."""

import math

import pytest
import torch

from richbll import ClassPredictive
from richbll.likelihoods import draws
from richbll.likelihoods.categorical import label_log_probs
from richbll.rng import child_generator

SHAPES = [(50, 7, 3), (50, 1, 1), (3, 2, 2), (1, 1, 15), (5, 33, 401), (2, 1, 999), (17, 5, 13), (1, 99, 64), (4, 0, 3)]


@pytest.fixture(params=[16, 64, 2**10])
def in_small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(draws, "_MOST_ELEMENTS", request.param)
    return request.param


@pytest.mark.parametrize("shape", SHAPES)
def test_the_numbers_do_not_depend_on_the_parts(shape: tuple[int, int, int], in_small_parts: int) -> None:
    s, n, C = shape
    want = torch.randn(shape, generator=child_generator(5, "logits"), dtype=torch.float64)
    parts = list(draws.normal_numbers(s, (n, C), seed=5))
    assert all(eps.numel() <= max(in_small_parts, C) for _, eps in parts)
    rows = {slice.start: [] for slice, _ in parts}
    for some, eps in parts:
        assert eps.shape[1:] == (some.stop - some.start, C)
        rows[some.start].append(eps)
    assert torch.equal(torch.cat([torch.cat(k) for k in rows.values()], dim=1), want)


def questions(dtype: torch.dtype, exclusive: bool, link: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    f = 4 * torch.randn(23, 11, generator=generator, dtype=torch.float64).to(dtype)
    v = 9 * torch.rand(23, 11, generator=generator, dtype=torch.float64).to(dtype)
    f.requires_grad_()
    pred = ClassPredictive(f, v, exclusive, link=link)
    asked = pred.probs, pred.log_prob(torch.ones(23, 1 if exclusive else 11).long()), pred.mutual_information
    (gradient,) = torch.autograd.grad(sum((one * one.detach().cos()).sum() for one in asked), f)
    return *asked, pred.entropy, gradient


@pytest.mark.parametrize("link", ["mc", "probit", "bridge"])
@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_answers_do_not_depend_on_the_parts(dtype, exclusive: bool, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = questions(dtype, exclusive, link)
    monkeypatch.setattr(draws, "_MOST_ELEMENTS", 64)
    tolerance = {"rtol": 1e-11, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(questions(dtype, exclusive, link), whole, **tolerance)


def test_without_parts_it_is_the_literal_formula() -> None:
    f, v = torch.randn(4, 3, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    eps = torch.randn(50, 4, 3, generator=child_generator(0, "logits"), dtype=torch.float64)
    samples = (f + v.sqrt() * eps).softmax(-1)
    pred = ClassPredictive(f, v)
    torch.testing.assert_close(pred.probs, samples.mean(0))
    entropy = -(samples.mean(0) * samples.mean(0).log()).sum(-1) + (samples * samples.log()).sum(-1).mean(0)
    torch.testing.assert_close(pred.mutual_information, entropy)


@pytest.mark.parametrize("shared", [True, False])
def test_trials_of_the_variance_share_their_draws(shared: bool, in_small_parts: int) -> None:
    f, y = 3 * torch.randn(9, 5), torch.arange(9) % 5
    variances = 4 * torch.rand(6, 9, 1 if shared else 5, dtype=torch.float64)
    got = label_log_probs(f, variances, y, 50, 0)
    want = [ClassPredictive(f.double(), v.expand(9, 5)).log_prob(y) for v in variances]
    torch.testing.assert_close(got, torch.stack(want))


def test_means_that_would_underflow() -> None:
    parts = [(slice(0, 1), torch.tensor([[-2000.0]])), (slice(0, 1), torch.tensor([[-2000.0]]))]
    torch.testing.assert_close(draws.log_mean_exp(parts, 2), torch.tensor([-2000.0]))
    torch.testing.assert_close(draws.log_mean_exp(parts, 4), torch.tensor([-2000.0 - math.log(2)]))


@pytest.mark.parametrize("link", ["mc", "probit", "bridge"])
@pytest.mark.parametrize("exclusive", [True, False])
def test_no_examples_at_all(link: str, exclusive: bool) -> None:
    pred = ClassPredictive(torch.zeros(0, 3), torch.zeros(0, 3), exclusive, link=link)
    assert pred.probs.shape == (0, 3)
    assert pred.log_prob(torch.zeros(0, 1 if exclusive else 3)).shape == pred.mutual_information.shape == (0,)
