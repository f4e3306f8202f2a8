"""New data after the fit: equal to dense Gaussian-process conditioning in mean and covariance."""

import numpy as np
import pytest
import torch
from torch import nn

from richbll import RichBLL, load
from richbll.errors import DataError, OptionError
from tests.cases import make
from tests.reference import dense

SIGMA2, TAU2 = 0.3, 0.8


def conditioned(case, new, y, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance at the test points: the fitted posterior as a prior, conditioned on the new points."""
    train, test, fresh = (dense.jacobians(case.model, case.last_layer, (x,)) for x in (case.train, case.test, new))
    both = np.vstack([test.phi_r[k], fresh.phi_r[k]])
    S = dense.rich_covariance(train.phi_r[k], train.phi_m[k], both, SIGMA2, TAU2)
    n = len(test.f)
    gain = S[:n, n:] @ np.linalg.inv(S[n:, n:] + SIGMA2 * np.eye(len(new)))
    return test.f[:, k] + gain @ (y[:, k] - fresh.f[:, k]), S[:n, :n] - gain @ S[n:, :n]


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("parts", [1, 3, 14], ids=["rank 14", "in three parts", "one by one"])
def test_equals_dense_conditioning(dtype, parts: int) -> None:
    case = make("mlp", 2, dtype)
    generator = torch.Generator().manual_seed(5)
    new, y = torch.randn(14, 4, generator=generator).to(dtype), torch.randn(14, 2, generator=generator).to(dtype)
    uq = RichBLL(case.model, noise_variance=SIGMA2, prior_variance=TAU2).fit(case.train)
    for x_part, y_part in zip(new.tensor_split(parts), y.tensor_split(parts), strict=True):
        uq.update((x_part, y_part))
    assert uq.num_data == 74
    pred, joint = uq.predict(case.test), uq.joint(case.test)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    for k in range(2):
        mean, S = conditioned(case, new, y.double().numpy(), k)
        np.testing.assert_allclose(pred.mean[:, k].double().numpy(), mean, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(joint.mean[:, k].double().numpy(), mean, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(
            joint.covariance[k].double().numpy(), S, rtol=10 * tolerance, atol=tolerance * S.max()
        )
    draws = uq.sample_functions(4000, seed=0)(case.test)
    error = (joint.covariance.diagonal(dim1=1, dim2=2).mT / 4000).sqrt()
    assert bool(((draws.mean(0) - pred.mean).abs() < 5 * error).all())
    module_mean, module_variance = uq.as_module()(case.test)
    torch.testing.assert_close(module_mean, pred.mean)
    torch.testing.assert_close(module_variance, pred.epistemic_variance)


def test_without_targets_only_the_variance_moves() -> None:
    case = make("mlp", 1, torch.float64)
    uq = RichBLL(case.model, noise_variance=SIGMA2).fit(case.train)
    before = uq.predict(case.test)
    after = uq.update(case.test).predict(case.test)
    assert torch.equal(after.mean, before.mean)
    assert bool((after.epistemic_variance < before.epistemic_variance).all())


def test_updating_with_a_fixed_transform_equals_fitting_once_when_there_is_nothing_to_transform() -> None:
    case = make("mlp", 1, torch.float64)
    uq = RichBLL(case.model, noise_variance=SIGMA2, enrich=False).fit(case.train[:40]).update(case.train[40:])
    once = RichBLL(case.model, noise_variance=SIGMA2, enrich=False).fit(case.train)
    torch.testing.assert_close(uq.predict(case.test).std, once.predict(case.test).std)


def test_refit_equals_fitting_on_everything() -> None:
    case = make("mlp", 2, torch.float64)
    options = {"noise_variance": SIGMA2, "solver": "cross", "ridge": 0.01}
    uq = RichBLL(case.model, **options).fit(case.train[:40]).update(case.train[40:], refit=True)
    once = RichBLL(case.model, **options).fit(case.train)
    assert uq.num_data == 60
    torch.testing.assert_close(uq.predict(case.test).epistemic_variance, once.predict(case.test).epistemic_variance)
    kept = RichBLL(case.model, **options).fit(case.train[:40]).update(case.train[40:])
    assert not torch.allclose(kept.predict(case.test).std, once.predict(case.test).std, rtol=1e-6)


def test_refit_with_targets_moves_the_mean_as_the_new_posterior_says() -> None:
    case = make("mlp", 1, torch.float64)
    new, y = torch.randn(20, 4).double(), torch.randn(20, 1).double()
    uq = RichBLL(case.model, noise_variance=SIGMA2, solver="cross").fit(case.train).update((new, y), refit=True)
    everything = torch.cat([case.train, new])
    train, test, fresh = (dense.jacobians(case.model, "4", (x,)) for x in (everything, case.test, new))
    both = np.vstack([test.phi_r[0], fresh.phi_r[0]])
    S = dense.rich_covariance(train.phi_r[0], train.phi_m[0], both, SIGMA2)
    want = test.f[:, 0] + S[:9, 9:] @ (y.numpy() - fresh.f)[:, 0] / SIGMA2
    np.testing.assert_allclose(uq.predict(case.test).mean[:, 0].numpy(), want, rtol=1e-8)


def test_what_cannot_be_refitted() -> None:
    case = make("mlp", 1, torch.float64)
    with pytest.raises(OptionError, match='solver="cross"'):
        RichBLL(case.model, noise_variance=1.0).fit(case.train).update(case.test, refit=True)
    with pytest.raises(OptionError, match="without subsampling"):
        RichBLL(case.model, noise_variance=1.0, solver="cross", subsample=30).fit(case.train).update(
            case.test, refit=True
        )


def test_all_or_none_have_targets() -> None:
    case = make("mlp", 1, torch.float64)
    uq = RichBLL(case.model, noise_variance=1.0).fit(case.train)
    before = uq.predict(case.test).std
    with pytest.raises(DataError, match="5 of the new examples have targets and 4 have none"):
        uq.update([(case.test[:5], torch.zeros(5)), (case.test[5:], None)])
    assert torch.equal(uq.predict(case.test).std, before)
    assert uq.num_data == 60


def test_scales_can_still_be_changed_and_it_can_be_saved(tmp_path) -> None:
    case = make("mlp", 1, torch.float64)
    y = torch.randn(9, 1).double()
    a = RichBLL(case.model, noise_variance=SIGMA2).fit(case.train).update((case.test, y))
    a.noise_variance, a.ridge = 2.0, 0.1
    b = RichBLL(case.model, noise_variance=2.0, ridge=0.1).fit(case.train).update((case.test, y))
    torch.testing.assert_close(a.predict(case.test).mean, b.predict(case.test).mean)
    torch.testing.assert_close(a.predict(case.test).std, b.predict(case.test).std)
    a.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", case.model)
    assert torch.equal(again.predict(case.test).mean, a.predict(case.test).mean)
    assert again.num_data == 69


def test_noise_as_a_function_weighs_new_points_too() -> None:
    case = make("mlp", 1, torch.float64)
    noise = lambda x: 0.1 + x[:, :1] ** 2  # noqa: E731
    new, y = torch.randn(14, 4).double(), torch.randn(14, 1).double()
    uq = RichBLL(case.model, noise_variance=noise).fit(case.train).update((new, y))
    train, test, fresh = (dense.jacobians(case.model, "4", (x,)) for x in (case.train, case.test, new))
    A = dense.projection(train.phi_r[0], train.phi_m[0], 0.0)
    precision = np.linalg.inv(np.eye(9) + A.T @ A)
    for phi, x in ((train.phi_r[0], case.train), (fresh.phi_r[0], new)):
        precision = precision + phi.T @ (phi / noise(x).numpy())
    b = fresh.phi_r[0].T @ ((y.numpy() - fresh.f) / noise(new).numpy())
    want = test.f + test.phi_r[0] @ np.linalg.solve(precision, b)
    np.testing.assert_allclose(uq.predict(case.test).mean.numpy(), want, rtol=1e-8)


def test_classes_can_be_updated_too() -> None:
    case = make("mlp", 3, torch.float64)
    labels = torch.randint(3, (60,))
    uq = RichBLL(case.model, "classification", enrich=False).fit((case.train[:40], labels[:40]))
    uq.update((case.train[40:], labels[40:]))
    once = RichBLL(case.model, "classification", enrich=False).fit((case.train, labels))
    torch.testing.assert_close(uq.predict(case.test).logit_variance, once.predict(case.test).logit_variance)


def test_an_update_drops_an_earlier_calibration() -> None:
    model, x = nn.Linear(2, 1), torch.randn(60, 2)
    uq = RichBLL(model, noise_variance=0.5).fit(x).conformalize((x, torch.randn(60)))
    assert uq.predict(x).calibration is not None
    assert uq.update(x).predict(x).calibration is None
