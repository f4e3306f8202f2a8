"""Half precision, mixed precision and autocast: features as the model makes them, everything added up in float64.

The truth is dense float64 algebra on the same, rounded, weights and inputs. Each feature and gradient is off by a few
roundings of ε/2 (one for every layer before it), and a variance, which is quadratic in them, by twice that; least
squares without a ridge amplifies it further where features are nearly collinear. Measured here, in units of the dtype's
ε (2⁻⁷ for bfloat16, 2⁻¹⁰ for float16), largest relative error of a variance:

                         bfloat16   float16   autocast to bfloat16   autocast to float16
    mlp                       1.6       2.1                    2.1                   2.7
    cnn_batchnorm_groups      1.3       2.5                    1.5                   2.5
    transformer_layer         0.4       0.5                    0.3                   0.5
    embeddings                5.9       5.3                    6.0                   5.8
    resnet_block              4.6       8.1                    4.4                   7.9
    mlp, body or head half    1.6       2.1

The whole zoo stays below 10 ε; 16 ε is asked. Directions of the features below ε/2 of the largest are rounding, so the
library leaves them out of the projection, and so does the truth here.
"""

import copy
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from richbll import RichBLL, load
from richbll.errors import RichBLLWarning
from richbll.solvers import exact
from tests.cases import Case, Forward, make
from tests.reference import dense

NAMES = ["mlp", "cnn_batchnorm_groups", "transformer_layer", "embeddings", "resnet_block"]
HALVES = [torch.bfloat16, torch.float16]
C, SIGMA2, TAU2 = 2, 0.3, 0.7
MOST_ROUNDINGS = 16  # in units of ε


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        yield


def truth(case: Case, eps: float, ridge: float | None = None, taus: float = TAU2) -> np.ndarray:
    """Covariances (c, n, n) at the test points, from a float64 copy of the model."""
    train, test = (dense.jacobians(case.model, case.last_layer, (x,)) for x in (case.train, case.test))
    found = []
    for phi_r, phi_m, test_r in zip(train.phi_r, train.phi_m, test.phi_r, strict=True):
        used = dense.ridge_floor(phi_r, eps / 2) if ridge is None else ridge
        A = dense.projection(phi_r, phi_m, used, cutoff=eps / 2)
        B = np.vstack([A, np.eye(A.shape[1])])
        x, xs = phi_r @ B.T, test_r @ B.T
        found.append(dense.gp_covariance(taus * x @ x.T, taus * xs @ x.T, taus * xs @ xs.T, SIGMA2))
    return np.stack(found)


def assert_close(variance: Tensor, want: np.ndarray, eps: float) -> None:
    """Variances (n, c) against covariances (c, n, n)."""
    error = np.abs(variance.double().numpy() / np.diagonal(want, axis1=1, axis2=2).T - 1).max()
    assert error < MOST_ROUNDINGS * eps, f"{error / eps:.1f} roundings"


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def fitted(case: Case, **options) -> RichBLL:
    options = {"noise_variance": SIGMA2, "prior_variance": TAU2} | options
    return RichBLL(case.model, **options).fit(list(case.train.split(16)))


@pytest.mark.parametrize("solver", ["exact", "cross"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name: str, dtype: torch.dtype, solver: str) -> None:
    case, eps = make(name, C, dtype), torch.finfo(dtype).eps
    before = state_of(case.model)
    uq = fitted(case, solver=solver)
    pred, joint = uq.predict(case.test), uq.joint(case.test)
    draws = uq.sample_functions(3)(case.test)
    want = truth(case, eps)
    assert_close(pred.epistemic_variance, want, eps)
    assert np.abs(joint.covariance.double().numpy() - want).max() < MOST_ROUNDINGS * eps * want.max()
    for answer in (pred.mean, pred.std, joint.covariance, draws, *uq.as_module()(case.test)):
        assert answer.dtype == torch.float32
        assert bool(torch.isfinite(answer).all())
    assert {tensor.dtype for tensor in uq._state.tensors().values()} == {torch.float64}
    after = case.model.state_dict()
    assert all(after[key].dtype == tensor.dtype and torch.equal(after[key], tensor) for key, tensor in before.items())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", NAMES)
def test_autocast_around_everything(name: str, dtype: torch.dtype) -> None:
    """The model runs as the user runs it; what richbll multiplies itself keeps its precision."""
    case, eps = make(name, C, torch.float32), torch.finfo(dtype).eps
    case.model.eval()
    with torch.autocast("cpu", dtype=dtype):
        uq = fitted(case)
        pred, joint, draws = uq.predict(case.test), uq.joint(case.test), uq.sample_functions(3)(case.test)
        with torch.no_grad():
            f = case.model(case.test)
    assert_close(pred.epistemic_variance, truth(case, eps), eps)
    assert torch.equal(pred.mean, f.float())  # under autocast it answers for what the model says there
    assert pred.std.dtype == joint.covariance.dtype == draws.dtype == torch.float32
    own = joint.covariance.diagonal(dim1=1, dim2=2).mT
    torch.testing.assert_close(own, pred.epistemic_variance, rtol=1e-5, atol=0)  # one posterior, in float32


@pytest.mark.parametrize("solver", ["exact", "cross", "sketch"])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_reach_the_solvers(name: str, solver: str) -> None:
    """A model that is in bfloat16 anyway: inside an autocast nothing changes, bit by bit."""
    case = make(name, C, torch.bfloat16)
    outside = fitted(case, solver=solver).predict(case.test).epistemic_variance
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fitted(case, solver=solver)
    assert torch.equal(inside.predict(case.test).epistemic_variance, outside)


def mixed(body: torch.dtype, head: torch.dtype) -> Case:
    """A body in one precision and a head in another, as many large models are run."""
    case = make("mlp", C, torch.float32)
    parts = {"body": case.model[:4].to(body), "head": case.model[4].to(head)}
    model = Forward(lambda m, x: m.head(m.body(x.to(body)).to(head)), **parts)
    return Case(model, "head", case.train.to(body).float(), case.test.to(body).float())


class InOnePrecision(nn.Module):
    """A mixed model whose casts do nothing, so that the truth can be computed in float64."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.body, self.head = model.body, model.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("half", ["body", "head"])
def test_a_body_and_a_head_of_different_precision(half: str, dtype: torch.dtype) -> None:
    case = mixed(dtype, torch.float32) if half == "body" else mixed(torch.float32, dtype)
    eps = torch.finfo(dtype).eps
    pred = fitted(case).predict(case.test)
    assert pred.std.dtype == torch.float32
    # no more than rounding is cut off: features of a float32 head come in float32
    want = truth(Case(InOnePrecision(case.model), "head", case.train, case.test), eps)
    assert_close(pred.epistemic_variance, want, eps)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_wider_basis(dtype: torch.dtype) -> None:
    case = make("mlp", C, dtype)
    exact = make("mlp", C, dtype)
    exact.model.double()
    x, test = exact.train.double(), exact.test.double()
    options = {"noise_variance": SIGMA2, "basis": "all_layers", "ridge": 0.1}
    want = RichBLL(exact.model, **options).fit(x).predict(test).epistemic_variance
    got = RichBLL(case.model, **options).fit(case.train).predict(case.test).epistemic_variance
    eps = torch.finfo(dtype).eps
    assert float((got / want - 1).abs().max()) < MOST_ROUNDINGS * eps


@pytest.mark.filterwarnings("ignore:.*edge")
@pytest.mark.parametrize("dtype", HALVES)
def test_classes(dtype: torch.dtype, tmp_path) -> None:
    case, y = make("mlp", 3, dtype), torch.arange(60) % 3
    uq = RichBLL(case.model, "classification").fit((case.train, y)).tune((case.train, y))
    uq.conformalize((case.train, y)).save(tmp_path / "uq.safetensors")
    for one in (uq, load(tmp_path / "uq.safetensors", case.model)):
        for link in ("mc", "probit", "bridge"):
            probs = one.predict(case.test, link=link).probs
            torch.testing.assert_close(probs.sum(1), torch.ones(9))
        pred = one.predict(case.test)
        assert bool(torch.isfinite(pred.mutual_information).all())
        assert pred.prediction_set(0.9).shape == (9, 3)
    uq.update((case.train, y))
    assert bool((uq.predict(case.test).logit_variance <= pred.logit_variance).all())


@pytest.mark.parametrize("dtype", HALVES)
def test_residuals_are_not_rounded(dtype: torch.dtype) -> None:
    """The noise from residuals and from validation data, with targets in the model's own precision."""
    case = make("mlp", 1, dtype)
    y = (case.model(case.train).detach().double() + 0.1 * torch.randn(60, 1, dtype=torch.float64)).to(dtype)
    errors = y.double() - case.model(case.train).detach().double()
    uq = RichBLL(case.model).fit((case.train, y))
    torch.testing.assert_close(uq._state.moments.residual_sq, errors.square().sum(0), rtol=1e-12, atol=0)
    uq.tune((case.train, y), method="mse")
    torch.testing.assert_close(uq.noise_variance, errors.square().mean(0), rtol=1e-12, atol=0)


# ---------------------------------------------------------------------- features that hardly vary


@pytest.mark.parametrize(("solver", "passes"), [("exact", 1), ("exact", 2), ("cross", 1)])
@pytest.mark.parametrize("width", [50, 256])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.ReLU])
def test_smooth_features_of_few_inputs_in_float32(
    activation: type[nn.Module], width: int, solver: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Singular values fall to the rounding of float32, and 1/s² multiplies what is wrong with H."""
    if passes == 2:
        monkeypatch.setattr(exact, "can_be_kept", lambda shapes, size: False)
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 150).unsqueeze(1)
    hidden = [nn.Linear(1, width), activation(), nn.Linear(width, width), activation()]
    model = nn.Sequential(*hidden, nn.Linear(width, 1))
    given = {"noise_variance": SIGMA2, "ridge": 0.0, "solver": solver}
    found = RichBLL(model, **given).fit(x).predict(x).epistemic_variance.flatten().double().numpy()
    jacobians = dense.jacobians(copy.deepcopy(model).double(), "4", (x.double(),))
    phi_r, phi_m = jacobians.phi_r[0], jacobians.phi_m[0]
    want = dense.rich_covariance(phi_r, phi_m, phi_r, SIGMA2).diagonal()
    np.testing.assert_allclose(found, want, rtol=5e-3)
