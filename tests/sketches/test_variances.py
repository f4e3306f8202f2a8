"""How far a sketched inner product is off: the variance that each file states, against many seeds."""

import importlib
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from richbll.sketches.signs import random_signs
from richbll.sketches.sketch import Sketch

Q, SEEDS = 16, 800


def make_sketch(name: str, size: int, seed: int) -> Sketch:
    """Without the search for the file, which would be most of the time here."""
    return importlib.import_module(f"richbll.sketches.{name}").make(size, seed)


def estimates(sketch: Callable[[int], torch.Tensor]) -> np.ndarray:
    """⟨Sx, Sy⟩ of every seed."""
    return np.array([float(torch.dot(*sketch(seed))) for seed in range(SEEDS)])


def variance_interval(sample: np.ndarray) -> tuple[float, float]:
    """Five standard errors around the sample's variance, by its own fourth moment."""
    squares = (sample - sample.mean()) ** 2
    error = 5 * squares.std(ddof=1) / math.sqrt(len(sample))
    return squares.mean() - error, squares.mean() + error


def pair(kind: str) -> torch.Tensor:
    x, y = torch.randn(2, 5 * Q, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "periodic":  # all of it at two places of every Q: what a weight with few active inputs looks like
        x[torch.arange(5 * Q) % Q > 1] = 0
    elif kind == "spiky":
        x[0] += 10
    return torch.stack([x, x + 0.5 * y * (x != 0)])


def gaussian_variance(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(x @ x * (y @ y) + (x @ y) ** 2) / Q


@pytest.mark.parametrize("kind", ["plain", "periodic", "spiky"])
@pytest.mark.parametrize("name", ["gaussian", "rademacher", "fold"])
def test_flat(name: str, kind: str) -> None:
    both = pair(kind)
    x, y = both
    expected = gaussian_variance(x, y)
    if name == "rademacher":
        expected -= float(2 * (x * y).square().sum()) / Q
    if name == "fold":  # pairs in different blocks only
        M = (torch.outer(x, y) + torch.outer(y, x)).square()
        block = torch.arange(len(x)) // Q
        expected = float(M[block[:, None] < block].sum()) / Q
        assert expected <= gaussian_variance(x, y)
    low, high = variance_interval(estimates(lambda seed: make_sketch(name, Q, seed).flat("w", both)))
    assert low < expected < high
    assert high < 2 * low + 0.5 * expected  # the interval is narrow enough to say something


def test_the_shifts_are_what_keeps_the_fold_from_adding_up_equal_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all shifts zero the periodic pair is still unbiased, but several times worse."""
    both = pair("periodic")
    shifted = estimates(lambda seed: make_sketch("fold", Q, seed).flat("w", both))
    monkeypatch.setattr(torch, "randint", lambda high, shape, generator: torch.zeros(shape, dtype=torch.int64))
    aligned = estimates(lambda seed: make_sketch("fold", Q, seed).flat("w", both))
    assert variance_interval(aligned)[0] > 3 * variance_interval(shifted)[1]


def test_kronecker_states_its_variance() -> None:
    g, a = torch.randn(2, 1, 1, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g, a = g / g.norm(), a / a.norm()
    low, high = variance_interval(estimates(lambda seed: make_sketch("kronecker", 38, seed).outer("w", g, a)[[0, 0]]))
    assert low < (1 + 2 / 6) * (1 + 2 / 6) - 1 < high  # q₁ = q₂ = 6, and two numbers stay zero


def test_the_two_sides_of_kronecker_are_independent() -> None:
    """With P = Q the sketch of u uᵀ would be symmetric, and too long by 2/q₁."""
    u = torch.randn(1, 1, 12, generator=torch.Generator().manual_seed(0))
    S = make_sketch("kronecker", 36, 0).outer("w", u, u).view(6, 6)
    assert float((S - S.T).norm()) > 0.3 * float(S.norm())


def test_tensor_sketch_stays_below_its_bound() -> None:
    """Var |S vec(g aᵀ)|² ≤ (3² − 1)/q at length 1: each side's signs pair up in three ways, and one is the mean."""
    g, a = torch.randn(2, 1, 1, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    g, a = g / g.norm(), a / a.norm()
    sample = estimates(lambda seed: make_sketch("tensor_sketch", Q, seed).outer("w", g, a)[[0, 0]])
    assert variance_interval(sample)[1] < 8 / Q


def test_signs_are_fair_bits() -> None:
    signs = random_signs(torch.Generator().manual_seed(0), 2**20 + 3)
    assert signs.shape == (2**20 + 3,)
    assert signs.dtype == torch.int8
    assert set(signs.unique().tolist()) == {-1, 1}
    columns = signs[: 2**20].view(-1, 64).double()  # every bit of the numbers drawn
    limit = 5 / math.sqrt(len(columns))
    assert float(columns.mean(0).abs().max()) < limit
    between = columns.T @ columns / len(columns) - torch.eye(64)
    assert float(between.abs().max()) < 1.2 * limit
