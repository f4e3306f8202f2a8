"""A diagnosis is made of measured things: each against the dense truth."""

import numpy as np
import pytest
import torch

from richbll import RichBLL
from tests.cases import make
from tests.reference import dense

SIGMA2 = 0.3


@pytest.fixture(scope="module")
def measured():
    case = make("mlp", 1, torch.float64)
    diagnosis = RichBLL(case.model, noise_variance=SIGMA2).fit(case.train).diagnose(list(case.train.split(17)))
    jacobians = dense.jacobians(case.model, case.last_layer, (case.train,))
    return case, diagnosis, jacobians.phi_r[0], jacobians.phi_m[0]


def test_residuals(measured) -> None:
    _, diagnosis, phi_r, phi_m = measured
    outside = phi_m - phi_r @ np.linalg.pinv(phi_r, rcond=1e-7) @ phi_m
    assert diagnosis.residual == pytest.approx(np.linalg.norm(outside) / np.linalg.norm(phi_m), rel=1e-8)
    assert diagnosis.spectral_residual == pytest.approx(np.linalg.norm(outside, 2) / np.linalg.norm(phi_m, 2), rel=1e-6)


def test_spectrum(measured) -> None:
    _, diagnosis, phi_r, phi_m = measured
    want = np.linalg.eigvalsh(phi_m @ phi_m.T + phi_r @ phi_r.T)[::-1]
    np.testing.assert_allclose(diagnosis.spectrum.numpy(), want.clip(0), atol=1e-10 * want[0])
    share = want.cumsum() / want.sum()
    assert diagnosis.num_for_90_percent == np.searchsorted(share, 0.9) + 1


def test_variances_and_dimension(measured) -> None:
    _, diagnosis, phi_r, phi_m = measured
    rich = dense.rich_covariance(phi_r, phi_m, phi_r, SIGMA2).diagonal()
    plain = dense.plain_covariance(phi_r, phi_r, SIGMA2).diagonal()
    assert diagnosis.std_ratio == pytest.approx(np.sqrt(rich).mean() / np.sqrt(plain).mean(), rel=1e-8)
    assert diagnosis.epistemic_share == pytest.approx((rich / (rich + SIGMA2)).mean(), rel=1e-8)
    A = dense.projection(phi_r, phi_m, 0.0)
    kernel = phi_r @ (np.eye(9) + A.T @ A) @ phi_r.T
    want = np.trace(kernel @ np.linalg.inv(kernel + SIGMA2 * np.eye(60)))
    assert diagnosis.effective_dimension == pytest.approx(want, rel=1e-8)


def test_it_prints_and_plots(measured, tmp_path) -> None:
    _, diagnosis, *_ = measured
    text = str(diagnosis)
    for part in ("residual of the projection", "90 % of the trace", "rich ÷ plain", "Theorem 3.5", diagnosis.advice):
        assert part in text
    diagnosis.plot(str(tmp_path / "diagnosis.png"))
    assert (tmp_path / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_advice_tells_prior_from_data() -> None:
    case = make("mlp", 1, torch.float64)
    uq = RichBLL(case.model, noise_variance=1e-6).fit(case.train)
    assert "the data decides almost every direction" in uq.diagnose(case.train).advice
    uq.noise_variance = 1e6
    assert "the prior decides most directions" in uq.diagnose(case.train).advice


def test_several_outputs_and_classes_and_no_enrichment() -> None:
    case = make("mlp", 3, torch.float64)
    for options in (
        {"noise_variance": 1.0},
        {"likelihood": "classification"},
        {"noise_variance": 1.0, "enrich": False},
    ):
        diagnosis = RichBLL(case.model, **options).fit(case.train).diagnose(case.train)
        assert 0 <= diagnosis.residual <= 1
        assert diagnosis.std_ratio >= 1 - 1e-9
    assert diagnosis.std_ratio == pytest.approx(1)


def test_memory_blocks_change_nothing() -> None:
    case = make("mlp", 1, torch.float64)
    a = RichBLL(case.model, noise_variance=1.0).fit(case.train).diagnose(case.train)
    b = RichBLL(case.model, noise_variance=1.0, memory_budget="20kB").fit(case.train).diagnose(case.train)
    torch.testing.assert_close(a.spectrum, b.spectrum)


def test_every_output_has_its_own_scales() -> None:
    case = make("mlp", 2, torch.float64)
    scales = {"noise_variance": [0.01, 9.0], "prior_variance": [1.0, 100.0]}
    diagnosis = RichBLL(case.model, **scales).fit(case.train).diagnose(case.train)
    stds = [
        RichBLL(case.model, **scales, enrich=enrich)
        .fit(case.train)
        .predict(case.train)
        .epistemic_variance.sqrt()
        .mean()
        for enrich in (True, False)
    ]
    assert diagnosis.std_ratio == pytest.approx(float(stds[0] / stds[1]), rel=1e-8)


def test_too_few_points_say_so() -> None:
    case = make("mlp", 1, torch.float64)
    diagnosis = RichBLL(case.model, noise_variance=1.0).fit(case.train).diagnose(case.train[:5])
    assert diagnosis.advised_subsample is None
    assert "5 points span the 9 directions" in str(diagnosis.subsample_bound)
    assert "not to be told from so few points" in str(diagnosis)
    noise = RichBLL(case.model, noise_variance=lambda x: 0.1 + x[:, :1] ** 2).fit(case.train)
    assert noise.diagnose(case.train).epistemic_share is None
