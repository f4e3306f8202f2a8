"""One contract for every sketch: whatever lies in sketches/ is linear, repeatable, unbiased, and small."""

import functools
import importlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from richbll.errors import OptionError, ShapeError
from richbll.sketches import make_sketch, sketch_names

ROOT = Path(__file__).parents[2]
Q, SEEDS = 64, 400
every_sketch = pytest.mark.parametrize("name", sketch_names())
both_ways = pytest.mark.parametrize("way", ["flat", "outer"])
dense_outer = pytest.mark.parametrize("name", ["fold", "gaussian", "rademacher"])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def vectors() -> torch.Tensor:
    """x and y at a small angle, longer than q, unequal in size, and positive: missing signs would add them up."""
    x = normal(100).abs() * torch.logspace(0, -1, 100, dtype=torch.float64)
    return torch.stack([x, x + 0.3 * x.std() * normal(100, seed=1)])  # (2, p)


def factors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """g (2, T, d_out), a (2, T, d_in), and the two gradients flattened; like the vectors."""
    g = normal(1, 3, 9).abs() + 0.3 * normal(2, 3, 9, seed=1)
    a = normal(1, 3, 11, seed=2).abs() + 0.3 * normal(2, 3, 11, seed=3)
    return g, a, torch.einsum("nto,nti->noi", g, a).flatten(1)


def sketched(name: str, way: str, seed: int, address: str = "w", size: int = Q) -> torch.Tensor:
    """The sketches of two vectors, (2, q)."""
    sketch = importlib.import_module(f"richbll.sketches.{name}").make(size, seed)
    return sketch.flat(address, vectors()) if way == "flat" else sketch.outer(address, *factors()[:2])


@functools.cache
def over_seeds(name: str, way: str, address: str) -> torch.Tensor:
    """Every seed's sketches of the two vectors, (seeds, 2, q)."""
    return torch.stack([sketched(name, way, seed, address) for seed in range(SEEDS)])


def inner_products(X: torch.Tensor) -> np.ndarray:
    """⟨Sx, Sy⟩ of every seed."""
    return (X[:, 0] * X[:, 1]).sum(dim=1).numpy()


def truth(way: str) -> float:
    x, y = vectors() if way == "flat" else factors()[2]
    return float(x @ y)


def deviation(estimates: np.ndarray, mean: float) -> float:
    """How many standard errors, estimated from the sample, the sample's mean is off."""
    return abs(estimates.mean() - mean) / (estimates.std(ddof=1) / math.sqrt(len(estimates)))


@every_sketch
@both_ways
def test_inner_products_are_unbiased_and_the_check_has_power(name: str, way: str) -> None:
    estimates = inner_products(over_seeds(name, way, "weight"))
    assert deviation(estimates, truth(way)) < 5
    assert deviation(1.2**2 * estimates, truth(way)) > 5  # a sketch that is 1.2 times too large would be found


@every_sketch
@both_ways
def test_other_addresses_are_independent(name: str, way: str) -> None:
    """⟨S_a x, S_b x⟩ is zero on average, where S_a = S_b would give |x|²; lengths know nothing of each other."""
    S_a, S_b = over_seeds(name, way, "weight")[:, 0], over_seeds(name, way, "bias")[:, 0]  # (seeds, q)
    assert deviation((S_a * S_b).sum(dim=1).numpy(), 0.0) < 5
    assert deviation((S_a * S_a).sum(dim=1).numpy(), 0.0) > 5
    lengths = torch.stack([S_a.norm(dim=1), S_b.norm(dim=1)])
    assert abs(float(torch.corrcoef(lengths)[0, 1])) < 5 / math.sqrt(SEEDS)


@every_sketch
def test_the_sum_over_addresses_is_a_sketch_of_the_concatenation(name: str) -> None:
    """A weight and a bias, as callers add them: E⟨S_w x + S_b u, S_w y + S_b v⟩ = ⟨x, y⟩ + ⟨u, v⟩."""
    estimates = inner_products(over_seeds(name, "outer", "weight") + over_seeds(name, "flat", "bias"))
    assert deviation(estimates, truth("outer") + truth("flat")) < 5


@every_sketch
@both_ways
def test_other_seeds_are_independent(name: str, way: str) -> None:
    sketches = over_seeds(name, way, "weight")[:, 0]  # (seeds, q)
    assert len(sketches.unique(dim=0)) == SEEDS
    assert deviation((sketches[::2] * sketches[1::2]).sum(dim=1).numpy(), 0.0) < 5


@every_sketch
@both_ways
def test_blocks_are_independent(name: str, way: str) -> None:
    """Elements far apart in one tensor do not share their randomness: not even at equal places of two blocks."""
    x = normal(1, 5)
    estimates = []
    for seed in range(100):
        sketch = make_sketch(name, Q, seed)
        if way == "flat":
            a, b = sketch.flat("w", x), sketch.flat("w", x, start=2**17)
        else:  # one row of a weight, with the same numbers as its first and as its last columns
            left, right = torch.zeros(2, 1, 1, 2**13 + 5, dtype=torch.float64)
            left[..., :5], right[..., -5:] = x, x
            one = torch.ones(1, 1, 1, dtype=torch.float64)
            a, b = sketch.outer("w", one, left), sketch.outer("w", one, right)
        estimates.append(float((a * b).sum()))
    assert np.std(estimates) > 0
    assert deviation(np.array(estimates), 0.0) < 5


@every_sketch
@both_ways
def test_the_same_seed_and_address_give_the_same_bits(name: str, way: str) -> None:
    once = sketched(name, way, 3)
    assert torch.equal(once, sketched(name, way, 3))
    used = make_sketch(name, Q, 3)
    for address in ("other", "w"):  # what was asked before changes nothing
        used.flat(address, normal(1, 3 * Q), start=5)
        used.outer(address, normal(1, 2, 3), normal(1, 2, 4))
    again = used.flat("w", vectors()) if way == "flat" else used.outer("w", *factors()[:2])
    assert torch.equal(once, again)
    assert not torch.equal(once, sketched(name, way, 3, "w2"))
    assert not torch.equal(once, sketched(name, way, 4))


def test_another_process_gives_the_same_sketches() -> None:
    program = (
        "from tests.sketches.test_contract import *\n"
        "print(json.dumps([[sketched(name, way, 5).tolist() for way in ('flat', 'outer')] for name in sketch_names()]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    here = [[sketched(name, way, 5).tolist() for way in ("flat", "outer")] for name in sketch_names()]
    np.testing.assert_allclose(np.array(json.loads(done.stdout)), np.array(here), rtol=0, atol=1e-12)


@every_sketch
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_pieces_add_up(name: str, data: st.DataObject) -> None:
    """Also past the first generator's share, and from a start that no block begins at."""
    q = data.draw(st.sampled_from([7, 16, 300]), "q")
    p = data.draw(st.integers(0, 700), "p")
    start = data.draw(st.sampled_from([0, 1, 5, 4090, 16380]), "start")
    cuts = sorted(data.draw(st.lists(st.integers(0, p), max_size=4), "cuts"))
    values = normal(2, p)
    sketch = make_sketch(name, q, 0)
    whole = sketch.flat("w", values, start)
    ends = [0, *cuts, p]
    pieces = [
        make_sketch(name, q, 0).flat("w", values[:, low:high], start + low) for low, high in itertools.pairwise(ends)
    ]
    torch.testing.assert_close(torch.stack(pieces).sum(0), whole, rtol=1e-12, atol=1e-11)
    padded = torch.cat([torch.zeros(2, start, dtype=torch.float64), values], dim=1)
    torch.testing.assert_close(sketch.flat("w", padded), whole, rtol=1e-12, atol=1e-11)


@every_sketch
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(0, 3),
    T=st.integers(0, 4),
    d_out=st.integers(0, 6),
    d_in=st.integers(0, 6),
    q=st.sampled_from([1, 2, 3, 8, 50]),
)
def test_linear_and_of_the_right_shape(name: str, n: int, T: int, d_out: int, d_in: int, q: int) -> None:
    sketch = make_sketch(name, q, 1)
    assert sketch.size == q
    x, y = normal(n, d_in), normal(n, d_in, seed=1)
    assert sketch.flat("w", x).shape == (n, q)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(
        sketch.flat("w", 2 * x - 3 * y), 2 * sketch.flat("w", x) - 3 * sketch.flat("w", y), **close
    )
    g, a, b = normal(n, T, d_out, seed=2), normal(n, T, d_in, seed=3), normal(n, T, d_in, seed=4)
    whole = sketch.outer("v", g, a)
    assert whole.shape == (n, q)
    torch.testing.assert_close(sketch.outer("v", g, 2 * a - b), 2 * whole - sketch.outer("v", g, b), **close)
    parts = sketch.outer("v", g[:, :1], a[:, :1]) + sketch.outer("v", g[:, 1:], a[:, 1:])
    torch.testing.assert_close(parts, whole, **close)  # a sum over t
    if n:
        alone = torch.cat([sketch.outer("v", g[i : i + 1], a[i : i + 1]) for i in range(n)])
        torch.testing.assert_close(alone, whole, **close)


@dense_outer
@pytest.mark.parametrize("slice_of", [1, 40, 2**20])
def test_outer_is_flat_of_the_gradient(name: str, slice_of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("richbll.sketches.sketch._SLICE", slice_of)
    g, a, gradient = factors()
    sketch = make_sketch(name, Q, 0)
    torch.testing.assert_close(sketch.outer("w", g, a), sketch.flat("w", gradient), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["kronecker", "tensor_sketch"])
def test_outer_of_structured_sketches_is_linear_in_the_gradient(name: str) -> None:
    """S vec(Σ_t g_t a_tᵀ) is a function of the gradient alone: from the sketches of all unit matrices."""
    g, a, gradient = factors()
    sketch = make_sketch(name, Q, 0)
    o, i = torch.cartesian_prod(torch.arange(9), torch.arange(11)).T
    units = sketch.outer("w", torch.eye(9).double()[o, None], torch.eye(11).double()[i, None])  # (d_out d_in, q)
    torch.testing.assert_close(gradient @ units, sketch.outer("w", g, a), rtol=1e-10, atol=1e-10)


def test_pieces_of_t_and_n_do_not_change_tensor_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sketched("tensor_sketch", "outer", 0)
    for pairs in (1, 2, 4):
        monkeypatch.setattr("richbll.sketches.tensor_sketch._TRANSFORMED", pairs * Q)
        torch.testing.assert_close(sketched("tensor_sketch", "outer", 0), whole, rtol=1e-12, atol=1e-12)


@every_sketch
@pytest.mark.parametrize(
    ("dtype", "result", "tolerance"),
    [
        (torch.float64, torch.float64, 1e-12),
        (torch.float32, torch.float32, 1e-5),
        (torch.bfloat16, torch.float32, 1e-5),
        (torch.float16, torch.float32, 1e-5),
    ],
)
def test_one_map_for_every_dtype(name: str, dtype: torch.dtype, result: torch.dtype, tolerance: float) -> None:
    """Half precision is the input's only: sums are formed in float32."""
    sketch = make_sketch(name, Q, 0)
    values, (g, a, _) = vectors().to(dtype), factors()
    g, a = g.to(dtype), a.to(dtype)
    for got, exact in [
        (sketch.flat("w", values, 3), sketch.flat("w", values.double(), 3)),
        (sketch.outer("v", g, a), sketch.outer("v", g.double(), a.double())),
    ]:
        assert got.dtype == result
        torch.testing.assert_close(got.double(), exact, rtol=tolerance, atol=10 * tolerance)


@every_sketch
def test_views_without_a_copy_and_values_left_alone(name: str) -> None:
    sketch = make_sketch(name, Q, 0)
    values = normal(100, 4).T
    before = values.clone()
    torch.testing.assert_close(sketch.flat("w", values), sketch.flat("w", before.contiguous()))
    assert torch.equal(values, before)
    g, a = normal(9, 3, 2).permute(2, 1, 0), normal(3, 11).expand(2, 3, 11)
    torch.testing.assert_close(sketch.outer("v", g, a), sketch.outer("v", g.contiguous(), a.contiguous()))


@every_sketch
def test_sketches_made_in_inference_mode_serve_gradients_later(name: str) -> None:
    sketch = make_sketch(name, Q, 0)
    g, a, _ = factors()
    with torch.inference_mode():
        sketch.flat("w", vectors())
        sketch.outer("v", g, a)
    x, g = vectors().requires_grad_(), g.clone().requires_grad_()
    (sketch.flat("w", x).square().sum() + sketch.outer("v", g, a).square().sum()).backward()
    Sx = sketch.flat("w", x.detach())
    torch.testing.assert_close((x.grad * x.detach()).sum(), 2 * Sx.square().sum())  # ⟨∇|Sx|², x⟩ = 2|Sx|²
    assert bool(g.grad.abs().sum() > 0)


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation gives back, in numbers."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


@every_sketch
def test_no_large_matrix_is_ever_formed(name: str) -> None:
    """p q is 33 million here, and n T q is 3 million: nothing above 2²⁰ numbers comes to be."""
    sketch = make_sketch(name, 512, 0)
    with Largest() as largest:
        sketch.flat("w", torch.ones(1, 2**15), start=3)
        sketch.outer("v", torch.ones(2, 3000, 50), torch.ones(2, 3000, 60))
    assert 2**10 < largest.numbers <= 2**20


def test_a_large_gradient_is_formed_in_slices() -> None:
    with Largest() as largest:
        make_sketch("fold", 512, 0).outer("w", torch.ones(2, 2, 1000), torch.ones(2, 2, 1100))
    assert 2**19 < largest.numbers <= 2**20


@pytest.mark.parametrize("name", ["gaussian", "rademacher"])
def test_dense_sketches_keep_a_bounded_number_of_blocks(name: str) -> None:
    sketch = make_sketch(name, 512, 0)
    sketch.flat("w", torch.ones(1, 2**15))
    assert sum(block.numel() for block in sketch._kept.values()) <= 2**22


def test_fold_keeps_a_byte_per_parameter() -> None:
    sketch = make_sketch("fold", 512, 0)
    sketch.flat("w", torch.ones(1, 10**6))
    sketch.flat("w", torch.ones(1, 10), start=77)
    kept = [signs for signs, _ in sketch._kept.values()]
    assert {signs.dtype for signs in kept} == {torch.int8}
    assert sum(signs.numel() for signs in kept) < 10**6 + 2**14


def test_sketches_are_found_by_their_file_names() -> None:
    assert {"fold", "gaussian", "kronecker", "rademacher", "tensor_sketch"} == set(sketch_names())
    for name in sketch_names():
        module = importlib.import_module(f"richbll.sketches.{name}")
        assert module.__doc__
        assert module.make.__doc__


def test_errors_say_what_to_do() -> None:
    with pytest.raises(OptionError, match=r"sketch='count': must be one of 'fold', 'gaussian'"):
        make_sketch("count", 4, 0)
    with pytest.raises(OptionError, match=r"sketch='dense': must be one of"):
        make_sketch("dense", 4, 0)
    with pytest.raises(OptionError, match=r"sketch_size=0: must be a whole number, 1 or more"):
        make_sketch("fold", 0, 0)
    with pytest.raises(OptionError, match=r"seed=0.5: must be a whole number"):
        make_sketch("fold", 4, 0.5)


@every_sketch
def test_wrong_shapes_are_refused_with_the_shapes(name: str) -> None:
    sketch = make_sketch(name, 4, 0)
    with pytest.raises(ShapeError, match=r"values have shape \(3,\): must be \(n, p\)"):
        sketch.flat("w", torch.ones(3))
    with pytest.raises(ShapeError, match=r"start=-1: must be the place"):
        sketch.flat("w", torch.ones(2, 3), start=-1)
    with pytest.raises(ShapeError, match=r"g has shape \(2, 3, 4\) and a has \(2, 4, 4\): must be"):
        sketch.outer("w", torch.ones(2, 3, 4), torch.ones(2, 4, 4))
    with pytest.raises(ShapeError, match=r"g has shape \(2, 4\) and a has \(2, 4\)"):
        sketch.outer("w", torch.ones(2, 4), torch.ones(2, 4))
