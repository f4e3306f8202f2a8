"""The paper's second figure: two classes on a line, seen by MAP, BLL and Rich-BLL; and two moons in the plane.

One logit, and the Laplace approximation of it: curvature p(1 − p), the prior that the network was trained with. The
NTK-GP with that curvature is the reference. Probabilities are by the probit formula, so nothing is sampled. AUROC: how
often an input far from all data is given more doubt than a test input, by the entropy of its probabilities or by the
variance of its logit. The distance to the NTK-GP is that of the logit's standard deviations, far from the data.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from richbll import ClassPredictive, RichBLL
from richbll_bench import methods
from richbll_bench.class_metrics import auroc, calibration_error
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.nets import Pair, mlp
from richbll_bench.ntk_gp import fit_ntk_gp
from richbll_bench.records import Key, Record, new_record
from richbll_bench.tables import Column, Row, Table, ours
from richbll_bench.toys.classes import PROBLEMS, far_inputs, train_classifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NAME = "toy-classification"
METHODS = ("map", "bll", "rich_bll", "rich_bll_s", "ntk_gp")
_TEST, _FAR = 1, 2  # of the seeds that belong to a seed


@dataclass(frozen=True)
class Settings:
    """All that the numbers depend on, with data set and seed."""

    num_points: int = 200
    num_test: int = 2000
    width: int = 50
    epochs: int = 1500
    prior_variance: float = 10.0
    ridge: float = 1e-6  # of the features weighted by the curvature, which are small
    subsample: float = 0.5


TINY = Settings(num_points=60, num_test=200, width=20, epochs=150)


@dataclass(frozen=True)
class Trained:
    """What one seed has."""

    data: Pair
    model: nn.Module
    settings: Settings
    seed: int

    def predict(self, method: str, x: Tensor) -> ClassPredictive:
        """The logit's mean and variance, and what follows from them."""
        prior, ridge = self.settings.prior_variance, self.settings.ridge
        options: dict[str, dict[str, Any]] = {
            "bll": {"enrich": False},
            "rich_bll": {"ridge": ridge},
            "rich_bll_s": {"ridge": ridge, "subsample": self.settings.subsample, "seed": self.seed},
        }
        with torch.no_grad():
            logits, trained = self.model(x), self.model(self.data[0])
        if method in options:
            uq = RichBLL(self.model, "binary", curvature="ggn", prior_variance=prior, progress=False, **options[method])
            pred = uq.fit(self.data).predict(x, link="probit")
            assert isinstance(pred, ClassPredictive)
            return pred
        variance = torch.zeros_like(logits)
        if method == "ntk_gp":
            p = trained.double().sigmoid().flatten()
            exact = fit_ntk_gp(self.model, self.data[0], noise_variance=1 / (p * (1 - p)), prior_variance=prior)
            variance = exact.variance(x).to(logits.dtype).unsqueeze(-1)
        return ClassPredictive(logits, variance, exclusive=False, link="probit")


def trained(dataset: str, settings: Settings, seed: int) -> Trained:
    """The network of a seed."""
    problem = PROBLEMS[dataset]
    data = problem.sample(settings.num_points, 3 * seed)
    model = mlp(problem.num_inputs, settings.width, seed, problem.activation)
    prior = settings.prior_variance
    train_classifier(model, data, epochs=settings.epochs, learning_rate=1e-2, prior_variance=prior)
    return Trained(data, model, settings, seed)


def scores(found: Trained, dataset: str, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The metrics of every method."""
    problem, count = PROBLEMS[dataset], found.settings.num_test
    test, labels = problem.sample(count, 3 * found.seed + _TEST)
    far = far_inputs(problem, found.data[0], count, 3 * found.seed + _FAR)
    exact = found.predict("ntk_gp", far).logit_variance.sqrt()
    metrics = {}
    for method in names:
        near_pred, far_pred = found.predict(method, test), found.predict(method, far)
        p = near_pred.probs.double().flatten()
        correct = (p > 0.5) == (labels.flatten() > 0.5)
        std = far_pred.logit_variance.sqrt()
        metrics[method] = {
            "nll": -float(near_pred.log_prob(labels).mean()),
            "ece": float(calibration_error(torch.maximum(p, 1 - p), correct)),
            "accuracy": float(correct.double().mean()),
            "auroc": auroc(near_pred.entropy, far_pred.entropy),
            "std_near": float(near_pred.logit_variance.sqrt().mean()),
            "std_far": float(std.mean()),
        }
        if method != "map":
            metrics[method]["auroc_variance"] = auroc(near_pred.logit_variance.flatten(), std.square().flatten())
        if method not in ("map", "ntk_gp"):
            metrics[method]["distance"] = float((std - exact).norm() / exact.norm())
    return metrics


def run(job: Job) -> list[Record]:
    """All methods of every seed."""
    records = []
    for seed in job.seeds:
        start = time.perf_counter()
        metrics = scores(trained(job.dataset, Settings(**job.settings), seed), job.dataset, job.methods)
        seconds = time.perf_counter() - start
        for method in job.methods:
            records.append(new_record(Key(NAME, job.dataset, method, seed), job.settings, metrics[method], seconds))
    return records


def jobs(size: Size) -> list[Job]:
    """One for each problem and seed."""
    settings = asdict(TINY if size.tiny else Settings())
    return [Job(NAME, name, METHODS, (seed,), settings, run) for name in PROBLEMS for seed in range(size.num_seeds)]


def tables(records: Sequence[Record]) -> list[Table]:
    """One for each problem."""
    titles = {"line": "Two classes on a line", "moons": "Two moons"}
    made = []
    for name, title in titles.items():
        columns = (
            Column("nll", "NLL", name, "nll", "lower"),
            Column("ece", "ECE", name, "ece", "lower"),
            Column("accuracy", "accuracy", name, "accuracy", "higher"),
            Column("auroc", "AUROC by entropy", name, "auroc", "higher"),
            Column("auroc_variance", "AUROC by variance", name, "auroc_variance", "higher"),
            Column("std_near", "logit std near", name, "std_near"),
            Column("std_far", "logit std far", name, "std_far"),
            Column("distance", "distance to NTK-GP", name, "distance", "lower"),
        )
        rows = tuple(Row(method, methods.load(method).title, 0, (None,) * len(columns)) for method in METHODS)
        found = [record for record in records if record.key.dataset == name]
        if found:
            made.append(ours(found, Table(f"{NAME}-{name}", title, columns, rows)))
    return made


def figures(records: Sequence[Record]) -> list[Figure]:
    """The first seed's network of each problem, trained again for it."""
    captions = {
        "line": "Two classes on a line: the probability of the one that is drawn above, and what ±2 standard "
        "deviations of the logit make of it. Data is in the grey parts only.",
        "moons": "Two moons. Above: the probability of the more likely class. Below: the standard deviation of the "
        "logit, which grows away from the data. The line is where both classes are equally likely.",
    }
    made = []
    for name, caption in captions.items():
        found = [record for record in records if record.key.dataset == name]
        if found:
            first = min(found, key=lambda record: record.key.seed)
            draw = partial(drawn, name, Settings(**first.settings), first.key.seed)
            made.append(Figure(f"{NAME}-{name}", "Uncertainty about two classes", caption, draw))
    return made


def drawn(dataset: str, settings: Settings, seed: int) -> "Drawing":
    """All methods side by side."""
    from richbll_bench.toys.class_pictures import draw_line, draw_moons

    found = trained(dataset, settings, seed)
    draw = draw_line if dataset == "line" else draw_moons
    return draw(found.data, {method: partial(found.predict, method) for method in METHODS})


experiment = Experiment(
    name=NAME,
    title="Toy classification on a line and of two moons",
    about="The paper's second figure: a network's probabilities, and how sure MAP, BLL and Rich-BLL are of them.",
    num_seeds=20,
    jobs=jobs,
    tables=tables,
    figures=figures,
)
