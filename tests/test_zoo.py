"""Every architecture of the zoo against the dense truth: variance, joint covariance, function draws."""

import warnings

import numpy as np
import pytest
import torch

from richbll import RichBLL
from richbll.errors import RichBLLWarning
from tests.cases import CASES, make
from tests.reference import dense

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
SIGMA2, TAU2 = 0.3, 0.7
NUM_DRAWS = 4000


def fitted(case, **options) -> RichBLL:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RichBLLWarning)
        options = {"noise_variance": SIGMA2, "prior_variance": TAU2} | options
        return RichBLL(case.model, **options).fit(list(case.train.split(16)))


def relative_error(got: torch.Tensor, want: np.ndarray) -> float:
    """Largest difference, relative to the largest entry of each output's block."""
    got = got.double().numpy()
    return float(np.max(np.abs(got - want) / np.abs(want).max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("name", list(CASES))
def test_equals_dense_truth(name: str, num_outputs: int, dtype: torch.dtype) -> None:
    case = make(name, num_outputs, dtype)
    uq = fitted(case)
    train = dense.jacobians(case.model, case.last_layer, (case.train,))
    test = dense.jacobians(case.model, case.last_layer, (case.test,))

    pred, joint = uq.predict(case.test), uq.joint(case.test)
    draws = uq.sample_functions(NUM_DRAWS, seed=4)(case.test)
    tolerance = TOLERANCE[dtype]
    assert relative_error(pred.mean, test.f) < tolerance
    for k in range(num_outputs):
        ridge = dense.ridge_floor(train.phi_r[k])
        want = dense.rich_covariance(train.phi_r[k], train.phi_m[k], test.phi_r[k], SIGMA2, TAU2, ridge)
        error = np.abs(pred.epistemic_variance[:, k].double().numpy() / want.diagonal() - 1).max()
        assert error < tolerance, f"variance of output {k}: {error:.2g}"
        assert relative_error(joint.covariance[k], want) < tolerance
        # draws of whole functions: mean and covariance within the error of so many of them
        offsets = (draws[:, :, k] - pred.mean[:, k]).double().numpy()
        error = np.sqrt((want**2 + np.outer(want.diagonal(), want.diagonal())) / NUM_DRAWS)
        assert (np.abs(offsets.T @ offsets / NUM_DRAWS - want) < 6 * error).all()
        assert (np.abs(offsets.mean(0)) < 6 * np.sqrt(want.diagonal() / NUM_DRAWS)).all()
