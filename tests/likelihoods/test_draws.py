"""Draws in parts are the same draws, and what is taken of them is the same too."""

import math

import pytest
import torch

from richbll import ClassPredictive
from richbll.likelihoods import draws
from richbll.likelihoods.categorical import label_log_probs

SHAPES = [(50, 7, 3), (50, 1, 1), (3, 2, 2), (1, 1, 15), (5, 33, 401), (2, 1, 999), (17, 5, 13), (1, 99, 64), (4, 0, 3)]


@pytest.fixture(params=[16, 64, 2**10])
def in_small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(draws, "_MOST_ELEMENTS", request.param)
    return request.param


def literal(f: torch.Tensor, s: int, seed: int) -> torch.Tensor:
    """The numbers of every row, one by one."""  # (s, n, C)
    rows = [whole(row.unsqueeze(0), s, seed) for row in f]
    return torch.cat(rows, dim=1) if rows else f.new_zeros(s, 0, f.shape[1])


def whole(f: torch.Tensor, s: int, seed: int) -> torch.Tensor:
    rows: dict[int, list[torch.Tensor]] = {}
    for some, eps in draws.normal_numbers(f, s, seed):
        rows.setdefault(some.start, []).append(eps.expand(-1, some.stop - some.start, -1))
    return torch.cat([torch.cat(k) for k in rows.values()], dim=1)


@pytest.mark.parametrize("most_kept", [2**20, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_numbers_depend_on_the_row_alone(
    shape: tuple[int, int, int], most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    s, n, C = shape
    monkeypatch.setattr(draws, "_MOST_KEPT", most_kept)
    f = 3 * torch.randn(n, C, dtype=torch.float64)
    want = literal(f, s, seed=5)
    assert want.shape == shape
    for most in (2**18, 2**10, 64, 16):
        monkeypatch.setattr(draws, "_MOST_ELEMENTS", most)
        assert torch.equal(whole(f, s, seed=5), want)
        assert torch.equal(whole(f.flip(0), s, seed=5), want.flip(1))
        assert all(eps.numel() <= max(most, C) for _, eps in draws.normal_numbers(f, s, seed=5))


def test_the_numbers_are_normal_and_those_of_rows_and_seeds_differ() -> None:
    f = 3 * torch.randn(4000, 3)
    eps = whole(f, 50, seed=0)
    assert abs(float(eps.mean())) < 0.02
    assert float(eps.var()) == pytest.approx(1, abs=0.03)
    used = eps.transpose(0, 1).flatten(1).unique(dim=0)
    assert 250 < len(used) <= 256  # almost all sets are taken
    correlation = used.corrcoef().fill_diagonal_(0)
    assert float(correlation.abs().max()) < 0.5  # of 150 numbers each
    assert not torch.equal(whole(f, 50, seed=1), eps)


def test_rounding_does_not_change_the_numbers() -> None:
    f = 3 * torch.randn(1000, 10)
    same = (whole(f * (1 + 1e-7), 5, seed=0) == whole(f, 5, seed=0)).all(dim=2).all(dim=0)
    assert same.double().mean() > 0.99


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
    eps = whole(f, 50, seed=0)
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


@pytest.mark.parametrize("link", ["mc", "probit", "bridge"])
def test_yes_and_no_are_all_there_is(link: str) -> None:
    f = torch.tensor([[0.0], [-0.0], [1.0], [-3.0]], dtype=torch.float64)
    pred = ClassPredictive(f, torch.full((4, 1), 4.0, dtype=torch.float64), exclusive=False, link=link)
    both = pred.log_prob(torch.ones(4, 1)).exp() + pred.log_prob(torch.zeros(4, 1)).exp()
    torch.testing.assert_close(both, torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("exclusive", [True, False])
def test_an_example_is_answered_alike_alone_and_in_company(exclusive: bool) -> None:
    f, v = 3 * torch.randn(40, 6), 9 * torch.rand(40, 6)
    together = ClassPredictive(f, v, exclusive)
    alone = [ClassPredictive(f[i : i + 1], v[i : i + 1], exclusive) for i in range(40)]
    torch.testing.assert_close(torch.cat([pred.probs for pred in alone]), together.probs)
    torch.testing.assert_close(torch.cat([p.mutual_information for p in alone]), together.mutual_information)


def test_under_inference_mode_first() -> None:
    f = torch.randn(3, 7)
    with torch.inference_mode():
        ClassPredictive(f, torch.ones(3, 7), num_samples=13).probs  # noqa: B018
    x = f.clone().requires_grad_()
    ClassPredictive(x, torch.ones(3, 7), num_samples=13).probs.square().sum().backward()
    assert x.grad is not None


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
