"""The facade: every option is honoured, every query leaves the state alone, every misuse has its error."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from richbll import RichBLL
from richbll.errors import DataError, NonFiniteError, NotFittedError, OptionError, RichBLLWarning, ShapeError
from tests.cases import make
from tests.reference import dense

DTYPE = torch.float64


@pytest.fixture
def case():
    return make("mlp", 2, DTYPE)


def variance(case, **options) -> torch.Tensor:
    options = {"noise_variance": 0.3} | options
    return RichBLL(case.model, **options).fit(case.train).predict(case.test).epistemic_variance


# ---------------------------------------------------------------------- options


def test_enrich_false_is_the_plain_last_layer(case) -> None:
    train = dense.jacobians(case.model, case.last_layer, (case.train,))
    test = dense.jacobians(case.model, case.last_layer, (case.test,))
    want = dense.plain_covariance(train.phi_r[0], test.phi_r[0], 0.3).diagonal()
    np.testing.assert_allclose(variance(case, enrich=False)[:, 0].numpy(), want, rtol=1e-9)
    assert bool((variance(case) > variance(case, enrich=False)).all())


@pytest.mark.parametrize("predicate", [lambda name: name.startswith("0"), lambda name: name.endswith("bias")])
def test_parameters_selects_by_name(case, predicate) -> None:
    train = dense.jacobians(case.model, case.last_layer, (case.train,), others=predicate)
    test = dense.jacobians(case.model, case.last_layer, (case.test,), others=predicate)
    want = dense.rich_covariance(train.phi_r[1], train.phi_m[1], test.phi_r[1], 0.3).diagonal()
    np.testing.assert_allclose(variance(case, parameters=predicate)[:, 1].numpy(), want, rtol=1e-8)


def test_a_frozen_model_warns_and_parameters_counts_it_again(case) -> None:
    rich = variance(case)
    case.model.requires_grad_(False)
    with pytest.warns(RichBLLWarning, match="all frozen.*parameters=lambda name: True"):
        plain = variance(case)
    torch.testing.assert_close(plain, variance(case, enrich=False))
    torch.testing.assert_close(variance(case, parameters=lambda name: True), rich)


def test_a_predicate_that_chooses_nothing_warns(case) -> None:
    with pytest.warns(RichBLLWarning, match="the predicate chose none"):
        variance(case, parameters=lambda name: False)


@pytest.mark.parametrize("option", ["noise_variance", "prior_variance"])
def test_one_scale_per_output(case, option: str) -> None:
    both = variance(case, **{option: torch.tensor([0.2, 5.0])})
    torch.testing.assert_close(both[:, 0], variance(case, **{option: 0.2})[:, 0])
    torch.testing.assert_close(both[:, 1], variance(case, **{option: [5.0, 5.0]})[:, 1])


@pytest.mark.parametrize("option", ["noise_variance", "prior_variance"])
def test_scales_can_be_changed_after_the_fit(case, option: str) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    before = uq.predict(case.test).epistemic_variance
    setattr(uq, option, 0.05)
    torch.testing.assert_close(uq.predict(case.test).epistemic_variance, variance(case, **{option: 0.05}))
    setattr(uq, option, 0.3 if option == "noise_variance" else 1.0)
    torch.testing.assert_close(uq.predict(case.test).epistemic_variance, before)


def test_a_returned_scale_is_a_copy(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    uq.noise_variance.fill_(99)
    assert uq.noise_variance.tolist() == [0.3, 0.3]


def test_ridge_matches_the_dense_truth_and_the_default_is_zero_with_enough_rows(case) -> None:
    torch.testing.assert_close(variance(case), variance(case, ridge=0.0))
    assert not torch.allclose(variance(case), variance(case, ridge=10.0), rtol=1e-3)


def test_too_few_rows_get_a_ridge_and_a_warning() -> None:
    few = make("fewer_rows_than_features", 1, DTYPE)
    with pytest.warns(RichBLLWarning, match="12 rows for 12 feature directions"):
        uq = RichBLL(few.model, noise_variance=0.3).fit(few.train)
    phi_r = dense.jacobians(few.model, few.last_layer, (few.train,)).phi_r[0]
    assert uq.ridge == pytest.approx(1e-3 * np.linalg.norm(phi_r, 2) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RichBLL(few.model, noise_variance=0.3, ridge=0.0).fit(few.train).ridge == 0.0
        RichBLL(few.model, noise_variance=0.3, enrich=False).fit(few.train)  # nothing is projected


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_progress(case, capsys, progress, shown) -> None:
    RichBLL(case.model, noise_variance=0.3, progress=progress).fit(case.train)
    assert ("features" in capsys.readouterr().err) == shown


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"likelihood": "poisson"}, "likelihood='poisson': must be one of 'regression'"),
        ({"ridge": -1.0}, "ridge=-1.0"),
        ({"ridge": "gcv?"}, "ridge='gcv"),
        ({"ridge": math.nan}, "ridge=nan"),
        ({"noise_variance": 0.0}, "noise_variance=0.0: must be positive"),
        ({"noise_variance": "loud"}, "noise_variance='loud'"),
        ({"prior_variance": -2}, "prior_variance=-2"),
        ({"prior_variance": math.inf}, "prior_variance=inf"),
        ({"memory_budget": "2 apples"}, "write a number and a unit"),
        ({"memory_budget": 0}, "must be a positive number of bytes"),
        ({"subsample": 0}, "subsample=0"),
    ],
)
def test_bad_options(case, options, reason) -> None:
    with pytest.raises(OptionError, match=reason):
        RichBLL(case.model, **({"noise_variance": 1.0} | options)).fit(case.train)


def test_scales_of_the_wrong_number(case) -> None:
    with pytest.raises(
        ShapeError, match=r"noise_variance has shape \(3,\), but there are 2 posteriors, one per output"
    ):
        variance(case, noise_variance=[1.0, 2.0, 3.0])


def test_not_a_module() -> None:
    with pytest.raises(OptionError, match=r"needs a torch\.nn\.Module"):
        RichBLL(lambda x: x)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- noise


def test_noise_from_residuals_is_the_fixed_point(case) -> None:
    y = case.model(case.train).detach() + torch.tensor([0.5, 2.0], dtype=DTYPE) * torch.randn(60, 2, dtype=DTYPE)
    with pytest.warns(RichBLLWarning, match="training residuals"):
        uq = RichBLL(case.model).fit((case.train, y))
    train = dense.jacobians(case.model, case.last_layer, (case.train,))
    e = y.numpy() - train.f
    for k in range(2):
        A = dense.projection(train.phi_r[k], train.phi_m[k], 0.0)
        kernel = train.phi_r[k] @ (np.eye(9) + A.T @ A) @ train.phi_r[k].T
        sigma2 = uq.noise_variance[k].item()
        gamma = np.trace(kernel @ np.linalg.inv(kernel + sigma2 * np.eye(60)))
        assert sigma2 == pytest.approx((e[:, k] ** 2).sum() / (60 - gamma), rel=1e-9)
    assert 0.1 < uq.noise_variance[0] < 1 < uq.noise_variance[1] < 10


def test_noise_needs_targets_that_are_not_reproduced_exactly(case) -> None:
    with pytest.raises(DataError, match="no targets"):
        RichBLL(case.model).fit(case.train)
    with pytest.raises(DataError, match="exactly"):
        RichBLL(case.model).fit((case.train, case.model(case.train).detach()))


# ---------------------------------------------------------------------- answers


def test_shapes_and_consistency(case) -> None:
    uq = RichBLL(case.model, noise_variance=[0.3, 0.4]).fit(case.train)
    pred, y = uq.predict(case.test), torch.randn(9, 2, dtype=DTYPE)
    assert pred.mean.shape == pred.std.shape == pred.epistemic_variance.shape == (9, 2)
    torch.testing.assert_close(pred.mean, case.model(case.test).detach())
    torch.testing.assert_close(pred.std.square(), pred.epistemic_variance + torch.tensor([0.3, 0.4], dtype=DTYPE))
    normal = torch.distributions.Normal(pred.mean, pred.std)
    torch.testing.assert_close(pred.log_prob(y), normal.log_prob(y).sum(-1))
    lower, upper = pred.interval(0.8)
    torch.testing.assert_close(normal.cdf(upper) - normal.cdf(lower), torch.full((9, 2), 0.8, dtype=DTYPE))
    torch.testing.assert_close(pred.ood_score, pred.epistemic_variance.sum(-1))
    assert pred.noise_variance.expand(9, 2).shape == (9, 2)


def test_bad_questions(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    with pytest.raises(OptionError, match=r"level=1\.5"):
        uq.predict(case.test).interval(1.5)
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        uq.predict(case.test).log_prob(torch.zeros(3))
    with pytest.raises(OptionError, match="num_samples=0"):
        uq.sample_functions(0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda uq, x: uq.predict(x),
        lambda uq, x: uq.joint(x),
        lambda uq, x: uq.sample_functions(2),
        lambda uq, x: uq.as_module(),
        lambda uq, x: uq.save("never.safetensors"),
        lambda uq, x: uq.noise_variance,
        lambda uq, x: uq.to("cpu"),
    ],
)
def test_questions_before_the_fit(case, ask) -> None:
    with pytest.raises(NotFittedError, match="call fit"):
        ask(RichBLL(case.model), case.test)


def test_predict_is_differentiable_in_x(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    x = case.test[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (uq.predict(x).mean, uq.predict(x).std), x)
    assert torch.autograd.gradcheck(lambda x: uq.joint(x).covariance, x)
    assert torch.autograd.gradcheck(uq.sample_functions(2), x)
    assert all(parameter.grad is None for parameter in case.model.parameters())


def test_predict_of_nan_names_the_rows(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    x = case.test.clone()
    x[[2, 5]] = math.nan
    with pytest.raises(NonFiniteError, match=r"2 of 9 rows \(row 2, 5\)"):
        uq.predict(x)
    with pytest.raises(NonFiniteError, match=r"2 of 9 rows \(row 2, 5\)"):
        uq.joint(x)


def test_predict_of_one_and_of_none(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    torch.testing.assert_close(uq.predict(case.test[:1]).std, uq.predict(case.test).std[:1])
    assert uq.predict(case.test[:0]).std.shape == (0, 2)


def test_sample_covariance_equals_joint_covariance(case) -> None:
    """Hard test 12, with a factor that is not symmetric: a transposed one fails."""
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    joint, num = uq.joint(case.test), 40_000
    draws = uq.sample_functions(num, seed=3)(case.test)
    centred = draws - joint.mean
    for k in range(2):
        S_B = joint.covariance[k]
        got = centred[:, :, k].mT @ centred[:, :, k] / num
        # an entry of a sample covariance has standard error √((S_ij² + S_ii S_jj)/num)
        error = ((S_B.square() + S_B.diagonal()[:, None] * S_B.diagonal()) / num).sqrt()
        assert bool(((got - S_B).abs() < 5.5 * error).all())
        mean_error = (S_B.diagonal() / num).sqrt()
        assert bool((centred[:, :, k].mean(0).abs() < 5 * mean_error).all())
    cross = centred[:, :, 0].mT @ centred[:, :, 1] / num  # outputs are independent
    scale = (joint.covariance[0].diagonal()[:, None] * joint.covariance[1].diagonal() / num).sqrt()
    assert bool((cross.abs() < 5 * scale).all())


def test_draws_are_coherent_functions(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    draws = uq.sample_functions(5, seed=1)
    whole = draws(case.test)
    torch.testing.assert_close(torch.cat([draws(case.test[:4]), draws(case.test[4:])], dim=1), whole)
    assert torch.equal(uq.sample_functions(5, seed=1)(case.test), whole)
    assert not torch.allclose(uq.sample_functions(5, seed=2)(case.test), whole)
    uq.noise_variance = 9.0  # later changes do not move a draw
    assert torch.equal(draws(case.test), whole)


def test_questions_change_nothing(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    before = {name: tensor.clone() for name, tensor in uq._fitted.tensors().items()}
    first = uq.predict(case.test)
    uq.joint(case.test), uq.sample_functions(3)(case.test), uq.as_module()(case.test), repr(uq)
    assert torch.equal(uq.predict(case.test).std, first.std)
    assert all(torch.equal(tensor, before[name]) for name, tensor in uq._fitted.tensors().items())


def test_global_random_state_is_left_alone(case) -> None:
    state = torch.get_rng_state()
    uq = RichBLL(case.model, noise_variance=0.3, subsample=20).fit(case.train)
    uq.sample_functions(3, seed=0)(case.test)
    assert torch.equal(torch.get_rng_state(), state)


def test_fit_twice_equals_fit_once(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    once = uq.predict(case.test).std
    assert torch.equal(uq.fit(case.train).predict(case.test).std, once)


def test_repr_says_what_it_is(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3, subsample=30)
    assert repr(uq) == "RichBLL(Sequential, not fitted)"
    assert repr(uq.fit(case.train)) == "RichBLL(Sequential, last_layer='4', r=9, N=60 from 30 rows)"


def test_a_bare_linear_model_is_bayesian_linear_regression() -> None:
    model, x = nn.Linear(3, 1).double(), torch.randn(40, 3, dtype=DTYPE)
    uq = RichBLL(model, noise_variance=0.5, prior_variance=2.0).fit(x)
    phi = torch.cat([x, torch.ones(40, 1)], dim=1)
    want = phi @ torch.linalg.inv(phi.mT @ phi / 0.5 + torch.eye(4) / 2.0) @ phi.mT
    torch.testing.assert_close(uq.joint(x).covariance[0], want)


def test_follows_the_model_to_another_dtype(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    want = uq.predict(case.test).epistemic_variance
    case.model.float()
    got = uq.predict(case.test.float()).epistemic_variance
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=0)


def test_to_moves_the_posterior(case) -> None:
    uq = RichBLL(case.model, noise_variance=0.3).fit(case.train)
    before = uq.predict(case.test).std
    assert uq.to("cpu") is uq
    assert torch.equal(uq.predict(case.test).std, before)
    uq.to("meta")
    assert all(tensor.is_meta for tensor in uq._fitted.tensors().values())
