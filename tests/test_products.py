"""Products by oneDNN or by whatever torch takes, in all layouts, against float64."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from richbll import products
from richbll.products import add_to, product

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda t: t.contiguous(),
    "columns": lambda t: t.mT.contiguous().mT,
    "some columns of more": lambda t: torch.cat([t, t], dim=-1)[..., : t.shape[-1]],
    "some rows of more, by columns": lambda t: torch.cat([t, t], dim=-2).mT.contiguous().mT[..., : t.shape[-2], :],
    "every other column": lambda t: torch.stack([t, t], dim=-1).flatten(-2)[..., ::2],
}
layouts = st.sampled_from(list(LAYOUTS))
sizes = st.integers(1, 40)


@pytest.fixture(params=["by oneDNN", "without it"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product is a large one."""
    monkeypatch.setattr(products, "_WORTH_IT", 0)
    monkeypatch.setattr(products, "_AT_ONCE", 100)
    if request.param == "by oneDNN" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of torch is without oneDNN")
    monkeypatch.setattr(products, "_is_there", lambda: request.param == "by oneDNN")


def close(found: Tensor, want: Tensor) -> bool:
    return bool(((found.double() - want).abs() <= 1e-5 * want.abs().max() + 1e-12).all())


@pytest.mark.usefixtures("large")
@given(n=sizes, k=sizes, m=sizes, batch=st.integers(0, 3), of_a=layouts, of_b=layouts, data=st.data())
def test_products(n: int, k: int, m: int, batch: int, of_a: str, of_b: str, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    lead = (batch,) if batch else ()
    a = LAYOUTS[of_a](torch.randn(*lead, n, k, generator=generator))
    b = LAYOUTS[of_b](torch.randn(*lead, k, m, generator=generator))
    want = torch.einsum("...nk,...km->...nm", a.double(), b.double())
    assert close(product(a, b), want)
    if batch:
        return
    for fresh in (False, True):
        around = torch.full((n + 2, m + 3), float("nan") if fresh else 1.0)
        total = around[1:-1, 1:-2]  # a part of a larger one
        add_to(total, a, b, fresh=fresh)
        assert close(total, want if fresh else want + 1)
        around[1:-1, 1:-2] = 0
        assert bool((around.isnan() if fresh else around == 1).sum() == around.numel() - n * m)  # the rest is as it was


def test_what_is_not_for_onednn_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_WORTH_IT", 1000)
    monkeypatch.setattr(products, "_is_there", lambda: True)
    ten = torch.ones(10, 10)
    assert products._is_for_onednn(ten, ten)
    assert products._is_for_onednn(ten.expand(3, 10, 10), ten.expand(3, 10, 10))
    others = [
        (ten[:9], ten),
        (ten.double(), ten.double()),
        (ten.bfloat16(), ten.bfloat16()),
        (ten.to("meta"), ten.to("meta")),
        (ten.expand(3, 10, 10), ten),
        (ten.expand(0, 10, 10), ten.expand(0, 10, 10)),
        (torch.nn.Parameter(ten), ten),
        (ten.clone().requires_grad_(), ten),
        (ten, ten.clone().requires_grad_()),
    ]
    for a, b in others:
        assert not products._is_for_onednn(a, b)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not products._is_for_onednn(ten, ten)


AMD = {"cpu_name": "AMD EPYC", "avx512_vp2intersect": True}


def test_processors_and_versions_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(a: Tensor, b: Tensor) -> Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD, raising=False)
    for answer, is_there in [(missing, False), (lambda a, b: a @ b + 1, False), (torch.matmul, True)]:
        monkeypatch.setattr(products, "_by_onednn", answer)
        assert products._is_there.__wrapped__() is is_there
    for other in [AMD | {"avx512_vp2intersect": False}, AMD | {"cpu_name": "Intel(R) Xeon(R)"}, {}]:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda told=other: told)
        assert not products._is_there.__wrapped__()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: AMD)
    with torch.device("meta"):  # whatever the defaults are when it is first asked
        assert products._is_there.__wrapped__()
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as before it was there
    assert not products._is_there.__wrapped__()


@pytest.mark.usefixtures("large")
def test_gradients_pass_through_what_has_any() -> None:
    a, b = torch.randn(200, 200, requires_grad=True), torch.randn(200, 200)
    (gradient,) = torch.autograd.grad(product(a, b).sum(), a)
    assert close(gradient, torch.ones(200, 200).double() @ b.mT.double())
