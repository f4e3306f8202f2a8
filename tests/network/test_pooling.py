"""Max-pooling with channels last is torch's own, to the bit: values, gradients, and what it is not for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from richbll import RichBLL
from richbll.network import pooling
from tests.network.test_plain import sequence


@pytest.fixture
def anything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes that were pooled with channels last."""
    monkeypatch.setattr(pooling, "_WORTH_IT", 0)
    shapes, whole = [], pooling._max_pooled

    def counted(x: Tensor, *args, **kwargs) -> Tensor:
        shapes.append(tuple(x.shape))
        return whole(x, *args, **kwargs)

    monkeypatch.setattr(pooling, "_max_pooled", counted)
    return shapes


@st.composite
def images(draw: st.DrawFn) -> Tensor:
    """With many that are equal, and some that are not numbers."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(3, 9), st.integers(3, 9)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
    if draw(st.booleans()):
        x[torch.rand(shape, generator=generator) < 0.1] = float("nan")
    return x


sizes = st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3)))


@pytest.mark.usefixtures("anything_is_worth_it")
@given(images(), sizes, st.none() | sizes, st.booleans(), st.integers(1, 2), st.booleans(), st.booleans())
def test_values_and_gradients_are_those_of_torch(
    x: Tensor, kernel, stride, padded: bool, dilation: int, ceil: bool, by_name: bool
) -> None:
    least = min(kernel) if isinstance(kernel, tuple) else kernel
    how = {"stride": stride, "padding": least // 2 if padded else 0, "dilation": dilation, "ceil_mode": ceil}
    try:
        want = functional.max_pool2d(x, kernel, **how)
    except RuntimeError:  # nothing is left of the image
        with pytest.raises(RuntimeError):
            pooling.pooled(functional.max_pool2d, (x, kernel), how)
        return
    leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    given_by = ((leaf, kernel), how) if by_name else ((leaf, kernel, *how.values()), {})
    found = pooling.pooled(functional.max_pool2d, *given_by)
    assert torch.equal(found.isnan(), want.isnan())
    assert torch.equal(found.nan_to_num(), want.nan_to_num())
    assert found.is_contiguous()
    g = torch.arange(want.numel(), dtype=x.dtype).view(want.shape)
    (mine,) = torch.autograd.grad(found, leaf, g)
    (truth,) = torch.autograd.grad(functional.max_pool2d(other, kernel, **how), other, g)
    assert torch.equal(mine, truth)
    assert mine.is_contiguous()


def test_its_gradient_has_a_derivative(anything_is_worth_it: list) -> None:
    x = torch.randn(2, 4, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda t: pooling.pooled(functional.max_pool2d, (t**2, 2), {}), x)
    assert anything_is_worth_it


def test_what_is_left_to_torch(anything_is_worth_it: list) -> None:
    x = torch.randn(2, 4, 4, 4)
    left = [
        (functional.max_pool2d, (x.to(memory_format=torch.channels_last), 2), {}),
        (functional.max_pool2d, (x[:, :3].contiguous(), 2), {}),
        (functional.max_pool2d, (x[0], 2), {}),
        (functional.max_pool2d, (x.bfloat16(), 2), {}),
        (functional.max_pool2d, (x.to("meta"), 2), {}),
        (functional.max_pool2d, (x.mT, 2), {}),
        (functional.max_pool2d, (torch.nn.Parameter(x), 2), {}),
        (functional.avg_pool2d, (x, 2), {}),
        (functional.max_pool1d, (x[0], 2), {}),
    ]
    for func, args, kwargs in left:
        assert pooling.pooled(func, args, kwargs).shape == func(*args, **kwargs).shape
    both = pooling.pooled(functional.max_pool2d, (x, 2), {"return_indices": True})
    same = pooling.pooled(functional.max_pool2d, (x, 2, None, 0, 1, False, True), {})
    assert torch.equal(both[1], same[1])
    torch.func.vmap(lambda one: pooling.pooled(functional.max_pool2d, (one[None], 2), {}))(x)
    assert not anything_is_worth_it


def test_sizes_that_are_numbers_of_numpy(anything_is_worth_it: list) -> None:
    x, two = torch.randn(2, 4, 6, 6), np.int64(2)
    found = pooling.pooled(functional.max_pool2d, (x, two, [], np.int64(1)), {})
    assert torch.equal(found, functional.max_pool2d(x, 2, padding=1))
    assert anything_is_worth_it
    with pytest.raises(RuntimeError, match="stride"):
        pooling.pooled(functional.max_pool2d, (x, 2, 0), {})


def test_a_small_image_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "_max_pooled", lambda *_, **__: pytest.fail("copies cost more than they save"))
    pooling.pooled(functional.max_pool2d, (torch.randn(2, 4, 4, 4), 2), {})


def test_a_fit_pools_so_and_finds_the_same(anything_is_worth_it: list, monkeypatch: pytest.MonkeyPatch) -> None:
    nn = torch.nn
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    network, x = sequence(*layers), torch.randn(9, 3, 8, 8, dtype=torch.float64)
    found = RichBLL(network, noise_variance=0.1, ridge=0.1).fit(x).predict(x).epistemic_variance
    assert anything_is_worth_it
    monkeypatch.setattr("richbll.network.capture.pooled", lambda func, args, kwargs: func(*args, **kwargs))
    want = RichBLL(network, noise_variance=0.1, ridge=0.1).fit(x).predict(x).epistemic_variance
    assert torch.equal(found, want)
