"""Methods for images on one small network: what they predict, what it costs, and scores against plain algebra."""

import pytest
import torch

from richbll import ClassPredictive, RichBLL
from richbll_bench.class_metrics import auroc, brier, false_positives, reliability
from richbll_bench.errors import UnknownMethodError
from richbll_bench.images import methods, scores
from richbll_bench.images.backbones import Setting
from richbll_bench.images.evaluation import evaluated, in_bins, in_parts
from richbll_bench.images.last_layer import predicting
from richbll_bench.images.proxies import PROXIES, proxy
from richbll_bench.images.reading import Images
from richbll_bench.images.task import Seen, Task, first_of_each_class

pytestmark = pytest.mark.filterwarnings("ignore:The best prior_variance")  # of networks that are hardly trained
SHARED = [name for name in methods.names() if not methods.load(name).own_networks]


@pytest.fixture
def task(pretended) -> Task:
    setting = Setting("cifar10", width=4, epochs=2, num_images=200, num_test=30, precision="float32")
    return Task(setting, seed=0, per_class=12, num_samples=20)


@pytest.mark.parametrize("name", SHARED)
def test_every_method_gives_probabilities_and_its_score(name: str, task: Task) -> None:
    method = methods.load(name)
    assert method.name == name
    assert method.title
    assert method.source
    metrics = evaluated(method.fit(task), task, method.score)
    assert 0 <= metrics["accuracy"] <= 1
    assert metrics["nll"] > 0
    for outside in ("svhn", "cifar100"):
        assert metrics[f"auroc_{outside}"] == metrics[f"auroc_{outside}_{method.score}"]
        assert 0 <= metrics[f"fpr95_{outside}"] <= 1
    assert sum(metrics[f"part_svhn_{n}"] for n in range(20)) == pytest.approx(1)
    assert metrics["nll_validation"] > 0  # there to choose options by


def test_unknown_method() -> None:
    with pytest.raises(UnknownMethodError, match=r"no method 'rich_bll' for images; there are .* Did you mean"):
        methods.load("rich_bll")


@pytest.mark.parametrize("name", ["rich_bll_s", "rich_bll_s_class", "rich_bll_ggn", "ll_laplace"])
def test_kept_features_give_what_predict_gives(name: str, task: Task) -> None:
    """Features are computed once for all methods; the network itself must say the same."""
    uq: RichBLL = methods.load(name).posterior(task).fit(task.loader("train"))
    assert uq.subsample_size <= 120
    found = predicting(uq, task)("test")
    x = torch.cat([x for x, _ in task.loader("test")])
    truth: ClassPredictive = uq.predict(x, num_samples=20, seed=0)
    torch.testing.assert_close(found.log_probs, truth.probs.double().log(), rtol=1e-3, atol=1e-4)
    variance = truth.variance_of(truth.logits.argmax(dim=1))
    torch.testing.assert_close(found.scores["variance"], variance.double(), rtol=1e-3, atol=1e-6)
    probit = uq.predict(x, link="probit").probs.double()
    torch.testing.assert_close(found.links["probit"].exp(), probit, rtol=1e-3, atol=1e-5)


def test_options_change_the_posterior(task: Task) -> None:
    """None of the options is dropped on the way."""
    loader = task.loader("train")
    chosen = [name for name in SHARED if ("bll" in name or name == "ll_laplace") and "tuned" not in name]
    found = {
        name: predicting(methods.load(name).posterior(task).fit(loader), task)("test").scores["variance"]
        for name in chosen
    }
    for first in found:
        for second in found:
            if first < second:
                assert not torch.allclose(found[first], found[second], rtol=1e-4), (first, second)
    assert bool((found["rich_bll_s"] >= found["bll"] - 1e-9).all())  # Theorem: richer is never surer


def test_tuning_leaves_the_shared_posterior_as_it_is(task: Task) -> None:
    before = methods.load("rich_bll_s").fit(task).predict("test").scores["variance"]
    tuned = methods.load("rich_bll_s_tuned").fit(task)
    assert sum(address.startswith("posterior") for address in task.kept) == 1
    assert tuned.costs["prior_variance"] != 1
    assert torch.equal(methods.load("rich_bll_s").fit(task).predict("test").scores["variance"], before)
    assert not torch.allclose(tuned.predict("test").scores["variance"], before)


def test_costs_are_told(task: Task) -> None:
    costs = methods.load("rich_bll_s").fit(task).costs
    assert costs["fit_yards"] > 0
    assert costs["predict_ratio"] > 0.1
    assert costs["prior_variance"] == 1


def test_unit_variance_against_plain_algebra() -> None:
    features, labels = torch.randn(40, 5), torch.arange(40) % 2
    seen = Seen(features, torch.randn(40, 2))
    found = scores.unit_variance(seen, labels, num_classes=2, weight=3.0)
    u = torch.nn.functional.normalize(features.double(), dim=1)
    for label in range(2):
        rows = u[labels == label]
        S = torch.linalg.inv(torch.eye(5).double() + 30 * rows.mT @ rows)
        torch.testing.assert_close(found.of(features)[:, label], (u @ S * u).sum(1))
    scored = scores.of_features(found, seen)
    assert bool((scored["unit_variance_least"] <= scored["unit_variance"]).all())
    longer = Seen(7 * features, seen.logits)
    torch.testing.assert_close(scores.of_features(found, longer)["unit_variance"], scored["unit_variance"])


def test_scores_of_logits() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.1, 0.0, 0.0]], dtype=torch.float64)
    found = scores.of_logits(logits)
    assert all(bool(score[1] > score[0]) for score in found.values())
    p = logits.softmax(1)
    torch.testing.assert_close(found["entropy"], -(p * p.log()).sum(1))
    torch.testing.assert_close(found["energy"], -logits.exp().sum(1).log())


def test_combinations_weigh_their_parts_by_their_spread() -> None:
    validation = {"entropy": torch.rand(500).double(), "energy": 100 * torch.randn(500).double()}
    made = scores.combination(validation).of(validation)
    assert set(made) == {"entropy+energy"}
    for part in validation.values():
        correlation = torch.corrcoef(torch.stack([part, made["entropy+energy"]]))[0, 1]
        assert 0.5 < float(correlation) < 0.9


def test_the_subset_has_so_many_of_each_class() -> None:
    images = Images(torch.zeros(9, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1, 0, 1, 0, 0, 2, 1, 1]))
    assert first_of_each_class(images, 2).labels.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("name", list(PROXIES))
def test_proxies_are_strange_and_repeatable(name: str) -> None:
    images = Images(torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8), torch.arange(6))
    made = proxy(name, images, seed=3)
    assert made.pixels.dtype == torch.uint8
    assert made.pixels.shape == images.pixels.shape
    assert torch.equal(made.pixels, proxy(name, images, seed=3).pixels)
    changed = (made.pixels != images.pixels).flatten(1).float().mean(dim=1)
    assert bool((changed > 0.5).all())


def test_jumbled_patches_are_the_same_patches() -> None:
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    made = proxy("jumbled", Images(pixels, torch.arange(3)), seed=0).pixels

    def patches(x: torch.Tensor) -> torch.Tensor:
        cut = x.unfold(1, 8, 8).unfold(2, 8, 8).permute(1, 2, 0, 3, 4).reshape(16, -1).double()
        return cut.sum(dim=1).sort().values

    for before, after in zip(pixels, made, strict=True):
        assert torch.equal(patches(before), patches(after))


# ---------------------------------------------------------------------- measures


def test_measures() -> None:
    probs = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    assert float(brier(probs, labels)) == pytest.approx((2 * 0.04 + 2 * 0.36 + 2 * 0.09) / 3)
    inside, outside = torch.arange(20.0), torch.tensor([0.0, 18.0, 18.5, 30.0])
    assert false_positives(inside, outside) == 0.5
    assert auroc(inside, outside) == pytest.approx((0.5 / 20 + 18.5 / 20 + 19 / 20 + 1) / 4)
    bins = reliability(torch.tensor([0.95, 0.55, 0.5]), torch.tensor([True, True, False]), num_bins=10)
    assert bins.share.nonzero().flatten().tolist() == [5, 9]
    assert float(bins.correct[5]) == pytest.approx(1 / 3)


def test_bins_and_parts() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log()
    found = in_bins(log_probs, torch.tensor([0, 1]))
    assert found["bin_confidence_13"] == pytest.approx(0.9)
    assert found["bin_correct_9"] == 0
    parts = in_parts(torch.arange(100.0), {"near": torch.arange(100.0), "far": torch.full((4,), 200.0)})
    assert parts["part_near_3"] == pytest.approx(0.05)
    assert parts["part_far_19"] == 1
