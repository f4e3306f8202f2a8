"""Running totals: float64, or on a device without it float32 and what rounding lost, against exact sums."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from richbll.precision import Sum, summing_dtype
from tests import pretend

EPS = torch.finfo(torch.float32).eps
finite = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
terms = arrays.arrays(np.float32, st.tuples(st.integers(1, 200), st.just(3)), elements=finite)


def summed(terms: np.ndarray, device: torch.device) -> torch.Tensor:
    total = Sum(terms.shape[1:], device)
    for term in torch.from_numpy(terms):
        total.add(term.to(device))
    return total.value()


small_on_large = np.full((200, 3), 0.01606691, dtype=np.float32)  # what is lost adds up to much more than ε of itself
small_on_large[0] = 270451.66


@given(terms=terms)
@example(terms=small_on_large)
def test_what_rounding_loses_is_kept(terms: np.ndarray) -> None:
    """The error is that of a sum in about 48 bits: n ε² of the terms' sizes, where float32 alone has n ε."""
    with pretend.device("mps") as there:
        assert summing_dtype(there) == torch.float32
        got = summed(terms, there)
    assert (got.dtype, got.device.type) == (torch.float64, "cpu")
    for column, value in zip(terms.T, got.tolist(), strict=True):
        size = math.fsum(abs(float(term)) for term in column)
        assert abs(value - math.fsum(map(float, column))) <= 2 * len(terms) * EPS**2 * size


@given(terms=terms)
def test_float64_where_there_is_one(terms: np.ndarray) -> None:
    got = summed(terms, torch.device("cpu"))
    size = np.abs(terms.astype(np.float64)).sum(axis=0)
    assert bool((np.abs(got.numpy() - [math.fsum(map(float, column)) for column in terms.T]) <= 1e-13 * size).all())


def test_float32_alone_would_lose_it() -> None:
    """Small numbers on top of a large one; so the tests above can fail."""
    small = torch.tensor([1e-4])
    with pretend.device("mps") as there:
        plain, total = torch.tensor([1e4], device=there), Sum((1,), there)
        total.add(plain)
        for _ in range(200):
            total.add(small.to(there))
            plain += small.to(there)
        assert plain.item() == 1e4
        assert total.value().item() == pytest.approx(1e4 + 200 * small.item(), rel=1e-13)


@pytest.mark.parametrize("name", ["cpu", "mps"])
def test_a_part_of_it(name: str) -> None:
    with pretend.device("mps") as there:
        device = there if name == "mps" else torch.device("cpu")
        total = Sum((2, 3), device)
        total.add(torch.ones(1, 2, device=device), at=(slice(1, 2), slice(2)))
        assert total.value().tolist() == [[0, 0, 0], [1, 1, 0]]
