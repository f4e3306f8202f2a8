"""Where other libraries break: numbered tests that do not belong to one module."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import NonFiniteError
from tests.cases import make
from tests.reference import dense


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["inputs", "targets", "last weight", "first weight"])
@pytest.mark.parametrize("solver", ["exact", "cross"])
def test_1_not_finite_names_the_batch_and_changes_nothing(bad: float, where: str, solver: str) -> None:
    case = make("mlp", 1, torch.float32)
    x, y = case.train.clone(), torch.zeros(60, 1)
    uq = RichBLL(case.model, noise_variance=1.0, solver=solver).fit((x, y))
    before = uq.predict(case.test).std
    batch = 2
    if where == "inputs":
        x[45, 1] = bad
    elif where == "targets":
        y[45] = bad
    else:
        batch = 0
        with torch.no_grad():
            case.model[4 if where == "last weight" else 0].weight[0, 0] = bad
    reason = rf"batch {batch} \(rows {20 * batch} to .*rows \(row"
    if batch == 0:  # a saturated tanh hides an infinite weight from features and gradients
        reason = rf"Parameter '{4 if where == 'last weight' else 0}.weight' holds NaN or Inf in 1 of .*batch 0"
    with pytest.raises(NonFiniteError, match=reason):
        uq.fit(list(zip(x.split(20), y.split(20), strict=True)))
    if where in ("inputs", "targets"):
        assert torch.equal(uq.predict(case.test).std, before)


def test_3_variance_is_never_negative_in_float32() -> None:
    """Nearly collinear features and little noise: differences of large kernels would go negative."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    x = torch.rand(2000, 1)
    uq = RichBLL(model, noise_variance=1e-8, prior_variance=1e4).fit(x)
    pred = uq.predict(torch.linspace(-1, 2, 5000)[:, None])
    assert bool((pred.epistemic_variance >= 0).all())
    assert bool(torch.isfinite(pred.std).all())
    assert bool((uq.joint(x[:50]).covariance[0].diagonal() >= 0).all())


@pytest.mark.filterwarnings("ignore:.*too few")
@pytest.mark.parametrize("num_rows", [1, 2, 5, 60])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", ["dead_relus", "duplicated_features", "layernorm_head", "mlp", "mlp_without_bias"])
def test_5_degenerate_features_fit_and_rich_stays_above_plain(name: str, dtype: torch.dtype, num_rows: int) -> None:
    case = make(name, 2, dtype)
    x = case.train[:num_rows]
    rich = RichBLL(case.model, noise_variance=0.1).fit(x).joint(case.test).covariance.double()
    plain = RichBLL(case.model, noise_variance=0.1, enrich=False).fit(x).joint(case.test).covariance.double()
    smallest = torch.linalg.eigvalsh(rich - plain).min().item()
    assert smallest >= -(1e-10 if dtype == torch.float64 else 1e-5) * rich.abs().max().item()


def test_5_a_head_without_any_live_feature() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    uq = RichBLL(model, noise_variance=1.0).fit(torch.rand(20, 3))
    assert bool((uq.predict(torch.rand(5, 3)).epistemic_variance == 0).all())
    awake = uq.predict(100 * torch.ones(1, 3)).epistemic_variance  # features that no training point had: the prior
    assert torch.isfinite(awake).all()


def test_7_bfloat16_accumulates_in_float64_and_answers_in_float32() -> None:
    case = make("mlp", 2, torch.bfloat16)
    uq = RichBLL(case.model, noise_variance=0.3).fit(list(case.train.split(16)))
    pred = uq.predict(case.test)
    assert pred.mean.dtype == pred.std.dtype == torch.float32
    assert all(tensor.dtype == torch.float64 for tensor in uq._fitted.tensors().values())
    exact = make("mlp", 2, torch.bfloat16)
    train = dense.jacobians(exact.model, exact.last_layer, (exact.train,))
    test = dense.jacobians(exact.model, exact.last_layer, (exact.test,))
    want = dense.rich_covariance(train.phi_r[0], train.phi_m[0], test.phi_r[0], 0.3).diagonal()
    np.testing.assert_allclose(pred.epistemic_variance[:, 0].numpy(), want, rtol=0.1)


@pytest.mark.parametrize("way", ["torch.compile(model)", "model.compile()", "a compiled part"])
def test_15_compiled_models_work(way: str) -> None:
    case = make("mlp", 1, torch.float32)
    want = RichBLL(case.model, noise_variance=0.3).fit(case.train).predict(case.test)
    model = case.model
    if way == "torch.compile(model)":
        model = torch.compile(model, backend="eager")
    elif way == "model.compile()":
        model.compile(backend="eager")
    else:
        model = nn.Sequential(torch.compile(model[:4], backend="eager"), model[4])
    model(case.train)
    got = RichBLL(model, noise_variance=0.3).fit(case.train).predict(case.test)
    torch.testing.assert_close(got.epistemic_variance, want.epistemic_variance, rtol=1e-5, atol=0)
    torch.testing.assert_close(got.mean, want.mean)


@pytest.mark.parametrize("c", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("name", ["mlp", "dead_relus", "layernorm_head"])
def test_4_rescaled_outputs_give_rescaled_variances(name: str, c: float) -> None:
    class Scaled(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return c * self.model(x)

    case = make(name, 2, torch.float64)
    ridge = 0.1
    plain = RichBLL(case.model, noise_variance=0.3, ridge=ridge).fit(case.train).predict(case.test)
    scaled = RichBLL(Scaled(case.model), noise_variance=0.3 * c**2, ridge=ridge * c**2).fit(case.train)
    pred = scaled.predict(case.test)
    torch.testing.assert_close(pred.epistemic_variance / c**2, plain.epistemic_variance, rtol=1e-9, atol=0)
    scaled.noise_variance, scaled.prior_variance = 0.3, 1 / c**2
    torch.testing.assert_close(
        scaled.predict(case.test).epistemic_variance, plain.epistemic_variance, rtol=1e-9, atol=0
    )


@pytest.mark.filterwarnings("ignore:.*edge", "ignore:.*prior_variance")
def test_13_tuning_does_not_depend_on_order_and_does_depend_on_the_variance() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    x, val = torch.randn(40, 3).double(), torch.randn(300, 3).double()
    y = model(val).detach() + 0.3 * torch.sin(4 * val[:, :1]) + 0.1 * torch.randn(300, 1).double()
    uq = RichBLL(model, noise_variance=1.0, ridge=0.1).fit(x)
    first = uq.tune((val, y)).noise_variance, uq.prior_variance
    order = torch.randperm(300)
    again = uq.tune(list(zip(val[order].split(11), y[order].split(11), strict=True))).noise_variance, uq.prior_variance
    torch.testing.assert_close(first, again, rtol=2e-3, atol=0)
    # the same errors at points of other variance give other scales: the objective knows the variance
    elsewhere = uq.tune((5 * val, model(5 * val).detach() + (y - model(val).detach())))
    assert not torch.allclose(elsewhere.prior_variance, first[1], rtol=0.05)
