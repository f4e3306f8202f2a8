"""Which score, and which posterior, should be the default for images? Chosen without the sets that tables are made of.

Inside are the validation images. Strange are the same images spoilt in known ways, noise, and clothes in grey
(Fashion-MNIST). House numbers, CIFAR-100 and test images are never looked at here. Of the
posteriors that are no worse than the network alone by the log-probability of validation labels, and of the scores that
`predict` offers, the pair is to be chosen that has the highest mean AUROC over all that is strange.
"""

import math
from collections.abc import Mapping, Sequence

from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.experiments.cifar import EPOCHS, SIZE, WIDTH, size_words
from richbll_bench.images import methods
from richbll_bench.images.evaluation import detection, of_probabilities, score_names
from richbll_bench.images.proxies import PROXIES
from richbll_bench.images.running import by_settings, records_of, settings
from richbll_bench.images.task import Fitted, Method, Task
from richbll_bench.records import Record
from richbll_bench.tables import Cell, Column, Row, Table, ours, summary, with_bold

NAME = "image-scores"
POSTERIORS = (
    "map",
    "bll",
    "rich_bll_s",
    "rich_bll_ggn",
    "rich_bll_shared",
    "bll_tuned",
    "rich_bll_s_tuned",
    "rich_bll_ggn_tuned",
)
OFFERED = ("entropy", "mutual_information", "variance", "relative_variance", "max_prob", "energy")  # by `predict`
CLOTHES = "fashion_mnist"
STRANGE = (*PROXIES, CLOTHES)  # to be told from validation images
_SAME = 1e-3  # nats, which the noise of the draws may make
_TITLES = {name: title for name, (title, _) in PROXIES.items()} | {CLOTHES: "Fashion-MNIST"}


def _evaluate(fitted: Fitted, task: Task, method: Method) -> Mapping[str, float]:
    validation = fitted.predict("validation")
    metrics = of_probabilities(validation.log_probs, task.images("validation").labels)
    sums: dict[str, list[float]] = {}
    for name in STRANGE:
        found = detection(validation, name, fitted.predict(name).scores)
        metrics |= found
        for score in score_names(list(found), name):
            sums.setdefault(score, []).append(found[f"auroc_{name}_{score}"])
    for score, values in sums.items():
        metrics |= {f"auroc_mean_{score}": sum(values) / len(values), f"auroc_least_{score}": min(values)}
    return metrics | {name: value for name, value in fitted.costs.items() if name == "prior_variance"}


def run(job: Job) -> list[Record]:
    """All posteriors of a job, on one network for each seed."""
    return records_of(job, _evaluate)


def jobs(size: Size) -> list[Job]:
    """One for each seed, on the networks of `cifar`."""
    found = settings("cifar10", size, width=WIDTH, epochs=EPOCHS)
    return [Job(NAME, "cifar10", POSTERIORS, (seed,), found, run) for seed in range(size.num_seeds)]


def tables(records: Sequence[Record]) -> list[Table]:
    """For every size of network: the posteriors, and the scores in the order of their means."""
    made = []
    for size, found in by_settings(records, *SIZE).items():
        words = size_words("cifar10", size)
        made += [_posteriors(found, words), _scores(found, words)]
    return made


def _posteriors(found: Sequence[Record], words: str) -> Table:
    columns = (
        Column("nll", "NLL", "cifar10", "nll", "lower", decimals=4),
        Column("ece", "ECE", "cifar10", "ece", "lower", decimals=4),
        Column("brier", "Brier", "cifar10", "brier", "lower", decimals=4),
        Column("prior_variance", "τ²", "cifar10", "prior_variance"),
    )
    rows = tuple(Row(name, methods.load(name).title, 0, (None,) * len(columns)) for name in POSTERIORS)
    return ours(found, Table(f"{NAME}-posteriors", f"{words}: posteriors on validation images", columns, rows))


def _scores(found: Sequence[Record], words: str) -> Table:
    names = [name for name in _TITLES if f"auroc_{name}_entropy" in found[0].metrics]
    columns = [
        Column("mean", "mean", metric="auroc_mean", better="higher"),
        Column("least", "least", metric="auroc_least", better="higher"),
        *(Column(name, _TITLES[name], metric=f"auroc_{name}", better="higher") for name in names),
    ]
    rows = []
    for method in POSTERIORS:
        of_method = [record for record in found if record.key.method == method]
        scores = score_names(list(of_method[0].metrics), names[0]) if of_method else []
        for score in scores:
            cells = tuple(_cell(of_method, f"{column.metric}_{score}") for column in columns)
            title = f"{methods.load(method).title}: {score.replace('_', ' ')}"
            rows.append(Row(f"{method}/{score}", title, 0, cells))
    rows.sort(key=lambda row: -_mean(row))
    notes = ("In the order of the mean.", *_chosen(found, rows))
    table = Table(f"{NAME}-scores", f"{words}: AUROC of strange images", tuple(columns), tuple(rows), notes)
    return with_bold(table)


def _chosen(found: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    """The best that `predict` offers with a posterior no worse than the network, and the best of all beside it."""
    means = {name: _cell([r for r in found if r.key.method == name], "nll") for name in POSTERIORS}
    nll = {name: cell.mean for name, cell in means.items() if cell is not None and cell.mean is not None}
    good = [name for name in nll if nll[name] <= nll.get("map", math.inf) + _SAME]
    offered = [row for row in rows if row.name.split("/")[0] in good and row.name.split("/")[1] in OFFERED]
    chosen = [f"Chosen, of those with an NLL no larger than MAP's by {_SAME:g}: {offered[0].title}."] if offered else []
    return [*chosen, *([f"The best of all: {rows[0].title}."] if rows else [])]


def _mean(row: Row) -> float:
    return row.cells[0].mean or 0.0 if row.cells[0] is not None else 0.0


def _cell(records: Sequence[Record], metric: str) -> Cell | None:
    values = [record.metrics[metric] for record in records if metric in record.metrics]
    return summary(values) if values else None


experiment = Experiment(
    name=NAME,
    title="Scores and posteriors for images, chosen on images made strange",
    about="What to take by default, found without the images that the tables are about.",
    num_seeds=3,
    jobs=jobs,
    tables=tables,
    takes=("width", "epochs", "images"),
)
