"""Classes, yes and no, and noise that depends on the input, against the dense truth."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from richbll import ClassPredictive, RichBLL, load
from richbll.errors import DataError, NotFittedError, OptionError, RichBLLWarning, ShapeError
from tests.cases import make
from tests.reference import dense

C, DTYPE = 3, torch.float64
SIGMA2, RIDGE = 0.1, 1.0  # what classification takes by default


@pytest.fixture
def case():
    return make("mlp", C, DTYPE)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(C, (60,), generator=torch.Generator().manual_seed(3))


def jacobians(case):
    return (dense.jacobians(case.model, case.last_layer, (x,)) for x in (case.train, case.test))


def weighted_covariance(train_r, weights, BtB, test_r, sigma2=1.0, tau2=1.0) -> np.ndarray:
    """(Φᵀ diag(weights) Φ/σ² + (τ² BᵀB)⁻¹)⁻¹ between test features: Theorem 3.1 with weights."""
    precision = train_r.T @ (weights[:, None] * train_r) / sigma2 + np.linalg.inv(tau2 * BtB)
    return test_r @ np.linalg.solve(precision, test_r.T)


def prior(phi_r, phi_m, ridge=RIDGE) -> np.ndarray:
    A = dense.projection(phi_r, phi_m, ridge)
    return np.eye(phi_r.shape[1]) + A.T @ A


def own_gradients(train, classes: np.ndarray) -> np.ndarray:
    return train.phi_m[classes, np.arange(len(classes))]


def variance(case, data, **options) -> np.ndarray:
    uq = RichBLL(case.model, "classification", **options).fit(data)
    pred = uq.predict(case.test)
    assert pred.logits.shape == pred.logit_variance.shape == (9, C)
    return pred.logit_variance.numpy()


@pytest.mark.parametrize("transform", [None, "shared", "per_class"])
def test_the_papers_construction(case, labels, transform) -> None:
    train, test = jacobians(case)
    classes = labels.numpy()
    got = variance(case, (case.train, labels), transform=transform)
    for k in range(C):
        mine = classes == k
        rows = mine if transform == "per_class" else np.ones(60, dtype=bool)
        BtB = prior(train.phi_r[0][rows], own_gradients(train, classes)[rows])
        want = weighted_covariance(train.phi_r[0], mine.astype(float), BtB, test.phi_r[0], SIGMA2).diagonal()
        np.testing.assert_allclose(got[:, k], want, rtol=1e-7)


def test_without_labels_the_predicted_class_counts(case) -> None:
    predicted = case.model(case.train).argmax(1)
    np.testing.assert_allclose(variance(case, case.train), variance(case, (case.train, predicted)), rtol=1e-9)


def test_a_shared_posterior(case, labels) -> None:
    train, test = jacobians(case)
    got = variance(case, (case.train, labels), class_posterior="shared")
    BtB = prior(train.phi_r[0], own_gradients(train, labels.numpy()))
    want = weighted_covariance(train.phi_r[0], np.ones(60), BtB, test.phi_r[0], SIGMA2).diagonal()
    np.testing.assert_allclose(got, np.repeat(want[:, None], C, axis=1), rtol=1e-7)


@pytest.mark.parametrize("class_posterior", ["per_class", "shared"])
def test_softmax_weighted_curvature(case, labels, class_posterior) -> None:
    train, test = jacobians(case)
    p = np.exp(train.f) / np.exp(train.f).sum(1, keepdims=True)
    h = p * (1 - p)
    got = variance(case, (case.train, labels), curvature="ggn", class_posterior=class_posterior)
    BtB = prior(train.phi_r[0], own_gradients(train, labels.numpy()))
    for k in range(C):
        weights = h[:, k] if class_posterior == "per_class" else h.mean(1)
        want = weighted_covariance(train.phi_r[0], weights, BtB, test.phi_r[0]).diagonal()
        np.testing.assert_allclose(got[:, k], want, rtol=1e-7)


def test_auto_is_per_class_while_it_fits(case, labels) -> None:
    roomy, short = (
        RichBLL(case.model, "classification", memory_budget=budget).fit((case.train, labels))
        for budget in ("1GB", 20_000)
    )
    assert len(roomy.noise_variance) == C
    assert len(short.noise_variance) == 1


def test_a_class_without_data_keeps_its_prior(case) -> None:
    labels = torch.randint(2, (60,))
    train, test = jacobians(case)
    for transform in ("shared", "per_class"):
        got = variance(case, (case.train, labels), transform=transform)
        BtB = prior(train.phi_r[0], own_gradients(train, labels.numpy())) if transform == "shared" else np.eye(9)
        np.testing.assert_allclose(got[:, 2], (test.phi_r[0] @ BtB @ test.phi_r[0].T).diagonal(), rtol=1e-7)


def test_subsample_is_of_each_class_and_weighs_what_it_stands_for(case) -> None:
    labels = torch.cat([torch.zeros(40), torch.ones(14), torch.full((6,), 2)]).long()
    uq = RichBLL(case.model, "classification", subsample=10, seed=1, class_posterior="per_class").fit(
        list(zip(case.train.split(7), labels.split(7), strict=True))
    )
    assert (uq.num_data, uq.subsample_size) == (60, 26)  # 10 + 10 + 6
    assert RichBLL(case.model, "classification", subsample=0.5).fit((case.train, labels)).subsample_size == 30
    from richbll.core.subsample import smallest
    from richbll.rng import row_keys

    keys, classes = row_keys(1, 0, 60), labels.numpy()
    rows = np.zeros(60, dtype=bool)
    for k in range(C):
        rows[classes == k] = smallest(keys[classes == k], 10)
    train, test = jacobians(case)
    BtB = prior(train.phi_r[0][rows], own_gradients(train, classes)[rows])
    got = uq.predict(case.test).logit_variance.numpy()
    for k, count in enumerate((40, 14, 6)):
        weights = (classes == k)[rows] * count / min(10, count)
        want = weighted_covariance(train.phi_r[0][rows], weights, BtB, test.phi_r[0], SIGMA2).diagonal()
        np.testing.assert_allclose(got[:, k], want, rtol=1e-7)
    everything = variance(case, (case.train, labels), subsample=1000)
    np.testing.assert_allclose(everything, variance(case, (case.train, labels)), rtol=1e-8)


@pytest.mark.parametrize("subsample", [1, 0.02])
def test_a_subsample_is_never_smaller_than_the_number_of_features(case, subsample) -> None:
    """Also where some classes have fewer rows than their share of these."""
    r = RichBLL(case.model, "classification").fit(case.train)._fitted.last_layer.num_features
    labels = torch.cat([torch.zeros(56), torch.ones(2), torch.full((2,), 2)]).long()[torch.randperm(60)]
    for size in (60, 7):
        data = list(zip(case.train.split(size), labels.split(size), strict=True))
        assert RichBLL(case.model, "classification", subsample=subsample).fit(data).subsample_size == r


def test_true_and_false_are_labels_everywhere(case) -> None:
    x, y = case.train, case.train[:, 0] > 0
    one, many = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, c)).double() for c in (1, 3))
    for model, likelihood, labels in [
        (one, "binary", y),
        (many, "multilabel", case.train[:, :3] > 0),
        (many, "classification", y),
        (many, "classification", torch.nn.functional.one_hot(y.long(), 3).bool()),
    ]:
        uq = RichBLL(model, likelihood).fit((x, labels))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            uq.tune((x, labels))
        if labels.shape != (60, 3) or likelihood == "multilabel":
            torch.testing.assert_close(uq.predict(x).log_prob(labels), uq.predict(x).log_prob(labels.long()))
    pred = RichBLL(one, noise_variance=1.0).fit((x, y)).predict(x)
    torch.testing.assert_close(pred.log_prob(y), pred.log_prob(y.double()))


@pytest.mark.parametrize("wrap", [list, np.array, torch.tensor])
def test_scales_of_classes_in_any_wrapping(case, labels, wrap) -> None:
    scale = wrap([1.0, 2.0, 3.0])
    few = RichBLL(case.model, "classification", prior_variance=scale).fit((case.train[:6], labels[:6]))
    assert few.prior_variance.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ShapeError, match="1 posterior, of one output or shared by all: give one number"):
        RichBLL(case.model, "classification", class_posterior="shared", prior_variance=scale).fit((case.train, labels))


@pytest.mark.parametrize("curvature", ["gaussian", "ggn"])
@pytest.mark.parametrize(("likelihood", "c"), [("binary", 1), ("multilabel", 3)])
def test_yes_and_no(likelihood: str, c: int, curvature: str) -> None:
    case = make("mlp", c, DTYPE)
    y = torch.randint(2, (60, c)).double()
    uq = RichBLL(case.model, likelihood, curvature=curvature).fit((case.train, y.squeeze(-1)))
    pred = uq.predict(case.test)
    train, test = jacobians(case)
    p = 1 / (1 + np.exp(-train.f))
    for k in range(c):
        BtB = prior(train.phi_r[k], train.phi_m[k])
        weights, sigma2 = (np.ones(60), SIGMA2) if curvature == "gaussian" else ((p * (1 - p))[:, k], 1.0)
        want = weighted_covariance(train.phi_r[k], weights, BtB, test.phi_r[k], sigma2).diagonal()
        np.testing.assert_allclose(pred.logit_variance[:, k].numpy(), want, rtol=1e-7)
    assert pred.probs.shape == (9, c)
    assert pred.entropy.shape == pred.ood_score.shape == pred.log_prob(torch.ones(9, c)).shape == (9,)


def test_noise_as_a_function_of_the_input() -> None:
    case = make("mlp", 2, DTYPE)

    def noise(x):
        return 0.1 + torch.stack([x[:, 0] ** 2, x[:, 1].abs()], dim=1)

    uq = RichBLL(case.model, noise_variance=noise).fit(list(case.train.split(25)))
    pred = uq.predict(case.test)
    train, test = jacobians(case)
    for k in range(2):
        weights = 1 / noise(case.train)[:, k].numpy()
        BtB = prior(train.phi_r[k], train.phi_m[k], ridge=0.0)
        want = weighted_covariance(train.phi_r[k], weights, BtB, test.phi_r[k]).diagonal()
        np.testing.assert_allclose(pred.epistemic_variance[:, k].numpy(), want, rtol=1e-7)
    torch.testing.assert_close(pred.noise_variance, noise(case.test))
    torch.testing.assert_close(pred.variance, pred.epistemic_variance + noise(case.test))


def test_bad_noise_functions() -> None:
    case = make("mlp", 2, DTYPE)
    for noise, reason in [
        (lambda x: torch.ones(3), r"shape \(3,\) for 60 examples and 2"),
        (lambda x: -torch.ones(len(x), 2), "not positive in batch 0"),
        (lambda x: torch.full((len(x), 2), float("nan")), "NaN or Inf in the noise"),
    ]:
        with pytest.raises((OptionError, DataError), match=reason):
            RichBLL(case.model, noise_variance=noise).fit([case.train])


# ---------------------------------------------------------------------- from logits to probabilities

LOGITS = torch.tensor([[3.0, 0.0, -1.0], [0.1, 0.0, 0.2], [40.0, -40.0, 0.0]], dtype=DTYPE)


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("link", ["mc", "probit", "bridge"])
@pytest.mark.parametrize("v", [0.0, 1e-12, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_2_probabilities_are_finite_and_sum_to_one(dtype, v: float, link: str, exclusive: bool) -> None:
    """Hard test 2."""
    logits = LOGITS.to(dtype)
    pred = ClassPredictive(logits, torch.full_like(logits, v), exclusive, link=link)
    assert bool(torch.isfinite(pred.probs).all())
    assert bool(((pred.probs >= 0) & (pred.probs <= 1)).all())
    if exclusive:
        torch.testing.assert_close(pred.probs.sum(1), torch.ones(3, dtype=dtype))
    for value in (pred.entropy, pred.mutual_information, pred.log_prob(torch.zeros(3, 1 if exclusive else 3).long())):
        assert bool(torch.isfinite(value).all())


@pytest.mark.parametrize("link", ["mc", "probit"])
def test_no_variance_is_the_networks_own_softmax(link: str) -> None:
    zero = torch.zeros_like(LOGITS)
    torch.testing.assert_close(ClassPredictive(LOGITS, zero, link=link).probs, LOGITS.softmax(1))
    torch.testing.assert_close(ClassPredictive(LOGITS, zero, False, link=link).probs, LOGITS.sigmoid())
    assert bool((ClassPredictive(LOGITS, zero).mutual_information < 1e-12).all())


def test_links_are_what_they_say() -> None:
    v = torch.tensor([[2.0, 0.5, 1.0]], dtype=DTYPE)
    logits = LOGITS[:1]
    want = (logits / (1 + torch.pi / 8 * v).sqrt()).softmax(1)
    torch.testing.assert_close(ClassPredictive(logits, v, link="probit").probs, want)
    exact = (logits + v.sqrt() * torch.randn(400_000, 3, dtype=DTYPE)).softmax(1).mean(0)
    many = ClassPredictive(logits, v, num_samples=200_000).probs[0]
    torch.testing.assert_close(many, exact, rtol=0, atol=5e-3)
    torch.testing.assert_close(ClassPredictive(logits, v, link="probit").probs[0], exact, rtol=0, atol=0.08)
    scalar = torch.tensor([[1.3]], dtype=DTYPE), torch.tensor([[4.0]], dtype=DTYPE)
    exact = torch.sigmoid(1.3 + 2 * torch.randn(400_000, dtype=DTYPE)).mean()
    assert abs(ClassPredictive(*scalar, False, link="probit").probs.item() - exact) < 0.01
    assert abs(ClassPredictive(*scalar, False, num_samples=100_000).probs.item() - exact) < 0.01


def test_bridge_is_the_literal_formula() -> None:
    """Small variances, where nothing is rescaled: α_c = (1 − 2/C + e^f Σ e^−f / C²) / v after the projection."""
    f, v = np.array([1.0, -0.5, 0.2, 0.9]), np.array([0.2, 0.3, 0.1, 0.4])
    f0 = f - v * f.sum() / v.sum()
    v0 = v - v**2 / v.sum()
    alpha = (1 - 2 / 4 + np.exp(f0) * np.exp(-f0).sum() / 16) / v0
    got = ClassPredictive(torch.from_numpy(f)[None], torch.from_numpy(v)[None], link="bridge").probs[0]
    np.testing.assert_allclose(got.numpy(), alpha / alpha.sum(), rtol=1e-10)


def test_samples_and_seed_are_honoured(case, labels) -> None:
    uq = RichBLL(case.model, "classification").fit((case.train, labels))
    ask = lambda **options: uq.predict(case.test, **options).probs  # noqa: E731
    assert torch.equal(ask(seed=1), ask(seed=1))
    assert not torch.equal(ask(seed=1), ask(seed=2))
    assert not torch.equal(ask(num_samples=10), ask(num_samples=11))
    assert not torch.equal(ask(link="probit"), ask(link="mc"))
    assert not torch.equal(ask(link="probit"), ask(link="bridge"))


def test_draws_favour_no_class_everywhere() -> None:
    """Equal and large variances: errors of 50 draws must differ from example to example."""
    torch.manual_seed(0)
    logits = 0.3 * torch.randn(2000, 10, dtype=DTYPE)
    predicted = ClassPredictive(logits, torch.full_like(logits, 25.0)).predicted
    assert predicted.bincount(minlength=10).max() < 400  # of 200 expected


def test_log_probabilities_do_not_underflow() -> None:
    logits, zero = torch.tensor([[20.0], [-20.0]]), torch.zeros(2, 1)
    for link in ("mc", "probit", "bridge"):
        yes_or_no = ClassPredictive(logits, zero, False, link=link)
        torch.testing.assert_close(yes_or_no.log_prob(torch.tensor([[0], [1]])), torch.tensor([-20.0, -20.0]))
    sure = ClassPredictive(torch.tensor([[200.0, 0.0]]), torch.zeros(1, 2))
    torch.testing.assert_close(sure.log_prob(torch.tensor([1])), torch.tensor([-200.0]))


def test_yes_and_no_add_up_to_one() -> None:
    logits, v = torch.randn(20, 3, dtype=DTYPE), torch.rand(20, 3, dtype=DTYPE) * 9
    for link in ("mc", "probit", "bridge"):
        pred = ClassPredictive(logits, v, False, link=link)
        one = torch.stack([pred.log_prob(torch.tensor(y).expand(20, 3)) for y in ((1, 1, 1), (0, 1, 1))]).exp().sum(0)
        rest = pred.probs[:, 1] * pred.probs[:, 2]
        torch.testing.assert_close(one, rest)


@pytest.mark.parametrize("class_posterior", ["per_class", "shared"])
def test_draws_of_functions_are_independent_over_classes(case, labels, class_posterior) -> None:
    uq = RichBLL(case.model, "classification", class_posterior=class_posterior).fit((case.train, labels))
    draws = uq.sample_functions(4000)(case.test)
    centred = (draws - draws.mean(0)) / draws.std(0)
    correlation = (centred[:, :, 0] * centred[:, :, 1]).mean(0)
    assert bool((correlation.abs() < 5 / 4000**0.5).all())
    torch.testing.assert_close(draws.var(0), uq.predict(case.test).logit_variance, rtol=0.15, atol=0)


@pytest.mark.parametrize("with_labels", [True, False])
def test_transforms_per_class_with_one_posterior_for_all(case, labels, with_labels) -> None:
    train, test = jacobians(case)
    classes = labels.numpy() if with_labels else train.f.argmax(1)
    data = (case.train, labels) if with_labels else case.train
    got = variance(case, data, transform="per_class", class_posterior="shared")
    for k in range(C):
        mine = classes == k
        BtB = prior(train.phi_r[0][mine], own_gradients(train, classes)[mine]) if mine.any() else np.eye(9)
        want = weighted_covariance(train.phi_r[0], np.ones(60), BtB, test.phi_r[0], SIGMA2).diagonal()
        np.testing.assert_allclose(got[:, k], want, rtol=1e-7)


def test_sets_are_for_probabilities_asked_for_in_the_same_way(case, labels, tmp_path) -> None:
    uq = RichBLL(case.model, "classification").fit((case.train, labels)).conformalize((case.train, labels))
    uq.predict(case.test).prediction_set(0.9)
    for options in ({"seed": 7}, {"num_samples": 10}, {"link": "probit"}):
        with pytest.raises(OptionError, match="Calibrated with link=mc"):
            uq.predict(case.test, **options).prediction_set(0.9)
    uq.conformalize((case.train, labels), link="probit").save(tmp_path / "uq.safetensors")
    load(tmp_path / "uq.safetensors", case.model).predict(case.test, link="probit").prediction_set(0.9)


def test_moving_keeps_the_calibration_and_what_refitting_needs(case, labels) -> None:
    uq = RichBLL(case.model, "classification", solver="cross").fit((case.train, labels))
    stayed = RichBLL(case.model, "classification", solver="cross").fit((case.train, labels))
    uq.conformalize((case.train, labels)).to("cpu").predict(case.test).prediction_set(0.9)
    a, b = (one.update((case.train, labels), refit=True).predict(case.test).logit_variance for one in (uq, stayed))
    assert uq.num_data == 120
    assert torch.equal(a, b)


def test_what_auto_decided_is_kept_in_the_file(case, labels, tmp_path) -> None:
    uq = RichBLL(case.model, "classification", memory_budget=20_000).fit((case.train, labels))
    uq.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", case.model)
    a, b = (one.update((case.test, torch.zeros(9).long())).predict(case.test).logit_variance for one in (uq, again))
    torch.testing.assert_close(a, b)


def test_one_data_term_for_all_is_kept_in_the_file_also_with_transforms_per_class(case, labels, tmp_path) -> None:
    options = {"transform": "per_class", "class_posterior": "shared", "prior_variance": torch.tensor([1.0, 2.0, 3.0])}
    uq = RichBLL(case.model, "classification", **options).fit((case.train, labels))
    assert uq.prior_variance.tolist() == [1.0, 2.0, 3.0]  # there are as many posteriors as transforms
    uq.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", case.model)
    a, b = (one.update((case.test, torch.zeros(9).long())).predict(case.test).logit_variance for one in (uq, again))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("likelihood", "c"), [("classification", 1), ("binary", 3)])
def test_the_number_of_outputs_must_fit_the_likelihood(likelihood: str, c: int) -> None:
    case = make("mlp", c, DTYPE)
    with pytest.raises(OptionError, match=rf"the model has {c} output"):
        RichBLL(case.model, likelihood).fit(case.train)


def test_labels_that_are_none(case) -> None:
    pred = ClassPredictive(torch.zeros(3, 2), torch.ones(3, 2))
    for bad in (torch.tensor([0, 1, 2]), torch.tensor([0.5, 0, 1]), torch.tensor([-1, 0, 1])):
        with pytest.raises(DataError, match="whole numbers from 0 to 1"):
            pred.log_prob(bad)
    with pytest.raises(OptionError, match="energy"):
        _ = ClassPredictive(torch.zeros(3, 2), torch.ones(3, 2), False, score="energy").ood_score
    with pytest.raises(OptionError, match="features_sq"):
        _ = ClassPredictive(torch.zeros(3, 2), torch.ones(3, 2), score="relative_variance").ood_score


@pytest.mark.parametrize(("likelihood", "c"), [("classification", 3), ("multilabel", 3)])
def test_the_relative_variance_does_not_follow_the_length_of_the_features(likelihood: str, c: int) -> None:
    """It is φᵀΣφ / φᵀφ of the network's class, or of all labels together."""
    case = make("mlp", c, DTYPE)
    uq = RichBLL(case.model, likelihood).fit(case.train)
    pred = uq.predict(case.test, score="relative_variance")
    phi = dense.jacobians(case.model, case.last_layer, (case.test,)).phi_r[0]
    own = pred.logit_variance.numpy()
    rows = np.arange(len(own))
    own = own[rows, pred.logits.argmax(dim=1).numpy()] if likelihood == "classification" else own.sum(axis=1)
    np.testing.assert_allclose(pred.ood_score.numpy(), own / (phi**2).sum(axis=1), rtol=1e-10)


def test_noise_as_a_function_is_differentiated_through() -> None:
    case = make("mlp", 1, DTYPE)
    uq = RichBLL(case.model, noise_variance=lambda x: 0.1 + x[:, :1] ** 2).fit(case.train)
    x = case.test[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: uq.predict(x).std, x)


def test_scores(case, labels) -> None:
    uq = RichBLL(case.model, "classification").fit((case.train, labels))
    pred = {score: uq.predict(case.test, score=score) for score in ("entropy", "variance", "max_prob", "energy")}
    torch.testing.assert_close(pred["entropy"].ood_score, pred["entropy"].entropy)
    own = pred["variance"]
    torch.testing.assert_close(own.ood_score, own.logit_variance[torch.arange(9), own.predicted])
    torch.testing.assert_close(own.variance_of(torch.zeros(9).long()), own.logit_variance[:, 0])
    torch.testing.assert_close(pred["max_prob"].ood_score, 1 - own.probs.amax(1))
    torch.testing.assert_close(pred["energy"].ood_score, -own.logits.logsumexp(1))
    information = uq.predict(case.test, score="mutual_information")
    torch.testing.assert_close(information.ood_score, information.mutual_information)
    assert bool((information.mutual_information <= information.entropy).all())


def test_rich_is_never_below_plain_here_either(case, labels) -> None:
    rich = variance(case, (case.train, labels))
    assert (rich >= variance(case, (case.train, labels), enrich=False) * (1 - 1e-10)).all()


# ---------------------------------------------------------------------- misuse, keeping


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (torch.full((60,), 3), "go from 3 to 3, but the model has 3 outputs"),
        (torch.full((60,), -1), "go from -1"),
        (torch.full((60,), 0.5), "one class number"),
        (torch.zeros(60, 2), "one class number"),
    ],
)
def test_bad_labels(case, labels, reason) -> None:
    with pytest.raises(DataError, match=reason):
        RichBLL(case.model, "classification").fit((case.train, labels))


def test_one_hot_labels(case, labels) -> None:
    one_hot = nn.functional.one_hot(labels, C).double()
    np.testing.assert_allclose(variance(case, (case.train, one_hot)), variance(case, (case.train, labels)))


def test_yes_and_no_are_0_and_1() -> None:
    case = make("mlp", 1, DTYPE)
    with pytest.raises(DataError, match="not all 0 or 1"):
        RichBLL(case.model, "binary").fit((case.train, torch.full((60,), 2.0)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"likelihood": "regression", "curvature": "ggn"}, "ggn"),
        ({"likelihood": "regression", "transform": "shared"}, "transform='shared'"),
        ({"likelihood": "classification", "transform": "per_output"}, "transform='per_output'"),
        ({"likelihood": "classification", "class_posterior": "both"}, "class_posterior='both'"),
        ({"likelihood": "classification", "curvature": "flat"}, "curvature='flat'"),
        ({"likelihood": "regression", "class_posterior": "shared"}, "is for classification"),
        ({"likelihood": "classification", "transform": "per_class", "ridge": "gcv"}, "gcv"),
        ({"solver": "bar"}, "solver='bar'"),
        ({"subsample": "some"}, "subsample='some'"),
        ({"likelihood": "classification", "noise_variance": lambda x: x}, "is for regression"),
    ],
)
def test_bad_options(case, options, reason) -> None:
    with pytest.raises(OptionError, match=reason):
        RichBLL(case.model, **options)


def test_bad_questions(case, labels) -> None:
    uq = RichBLL(case.model, "classification").fit((case.train, labels))
    for options, reason in [({"link": "x"}, "link='x'"), ({"score": "x"}, "score='x'"), ({"num_samples": 0}, "=0")]:
        with pytest.raises(OptionError, match=reason):
            uq.predict(case.test, **options)
    with pytest.raises(NotFittedError, match="conformalize"):
        uq.predict(case.test).prediction_set(0.9)
    regression = RichBLL(case.model, noise_variance=1.0).fit(case.train)
    with pytest.raises(OptionError, match="no options for regression, but got link"):
        regression.predict(case.test, link="mc")


def test_per_class_transforms_of_a_stream_that_can_be_read_once(case, labels) -> None:
    with pytest.raises(DataError, match="once per class"):
        RichBLL(case.model, "classification", transform="per_class").fit(iter([(case.train, labels)]))


@pytest.mark.parametrize("transform", ["shared", "per_class"])
@pytest.mark.parametrize("curvature", ["gaussian", "ggn"])
def test_saving(case, labels, tmp_path, transform, curvature) -> None:
    options = {"transform": transform, "curvature": curvature}
    uq = RichBLL(case.model, "classification", **options).fit((case.train, labels))
    uq.conformalize((case.train, labels))
    uq.save(tmp_path / "uq.safetensors")
    again = load(tmp_path / "uq.safetensors", case.model)
    assert torch.equal(again.predict(case.test).probs, uq.predict(case.test).probs)
    assert torch.equal(again.predict(case.test).prediction_set(0.8), uq.predict(case.test).prediction_set(0.8))
    again.ridge = uq.ridge = 0.3
    assert torch.equal(again.predict(case.test).probs, uq.predict(case.test).probs)
    mean, var = again.as_module()(case.test)
    torch.testing.assert_close(var, uq.predict(case.test).logit_variance)
    torch.testing.assert_close(mean, uq.predict(case.test).logits)


def test_saving_with_noise_as_a_function(tmp_path) -> None:
    from richbll.errors import ArtifactError

    case = make("mlp", 1, DTYPE)
    noise = lambda x: 0.1 + x[:, :1] ** 2  # noqa: E731
    uq = RichBLL(case.model, noise_variance=noise).fit(case.train)
    uq.save(tmp_path / "uq.safetensors")
    with pytest.raises(ArtifactError, match="give it again"):
        load(tmp_path / "uq.safetensors", case.model)
    again = load(tmp_path / "uq.safetensors", case.model, noise_variance=noise)
    assert torch.equal(again.predict(case.test).std, uq.predict(case.test).std)


def test_generalised_cross_validation() -> None:
    """λ by gcv minimises the literal score, and predicts the gradients of new inputs better than no ridge."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 1)).double()
    x, new = torch.randn(120, 3, dtype=DTYPE), torch.randn(300, 3, dtype=DTYPE)
    uq = RichBLL(model, noise_variance=1.0, ridge="gcv").fit(x)
    train, test = dense.jacobians(model, "2", (x,)), dense.jacobians(model, "2", (new,))
    phi_r, phi_m = train.phi_r[0], train.phi_m[0]

    def score(ridge: float) -> float:
        S = phi_r @ np.linalg.solve(phi_r.T @ phi_r + ridge * np.eye(41), phi_r.T)
        return np.linalg.norm(phi_m - S @ phi_m) ** 2 / (120 - np.trace(S)) ** 2

    def held_out(ridge: float) -> float:
        return np.linalg.norm(test.phi_m[0] - test.phi_r[0] @ dense.projection(phi_r, phi_m, ridge).T)

    assert score(uq.ridge) <= 1.001 * min(score(ridge) for ridge in np.logspace(-9, 3, 49))
    assert held_out(uq.ridge) < held_out(0.0)
    with pytest.raises(OptionError, match="needs more rows"):
        RichBLL(model, noise_variance=1.0, ridge="gcv").fit(x[:30])


def test_the_ridge_of_classes_is_the_papers(case, labels) -> None:
    assert RichBLL(case.model, "classification").fit((case.train, labels)).ridge == 1.0
    few = make("fewer_rows_than_features", 1, DTYPE)
    with pytest.warns(RichBLLWarning):
        assert RichBLL(few.model, noise_variance=1.0).fit(few.train).ridge > 0


def test_the_default_score(case) -> None:
    """Chosen by `richbll bench image-scores`."""
    uq = RichBLL(case.model, "classification").fit(case.train)
    assert torch.equal(uq.predict(case.test).ood_score, uq.predict(case.test, score="relative_variance").ood_score)
    weighted = RichBLL(case.model, "classification", curvature="ggn").fit(case.train)
    assert torch.equal(weighted.predict(case.test).ood_score, weighted.predict(case.test).entropy)
