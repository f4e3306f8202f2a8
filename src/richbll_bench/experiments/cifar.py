"""The paper's table of CIFAR-10: probabilities on test images, and images of other kinds told apart.

    richbll bench cifar                                   width 32, 20 epochs, 3 seeds; methods that train
                                                          networks of their own at width 16, 6 epochs
    richbll bench cifar --width 128 --epochs 100          the paper's setting, for a GPU
    richbll bench cifar --dataset fashion_mnist           a quick pair: digits for a network of clothes

All methods of a seed that need no network of their own share one. Records are compared within one width and one number
of epochs only. Nothing is chosen on test images or on images of other kinds: prior scales come from validation labels.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from richbll_bench import image_datasets
from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.images import methods
from richbll_bench.images.evaluation import evaluated, score_names
from richbll_bench.images.pictures import reliability_figure, score_figure
from richbll_bench.images.precision import dtype_of
from richbll_bench.images.running import by_settings, records_of, settings
from richbll_bench.images.task import OUTSIDE, Fitted, Method, Task
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Record
from richbll_bench.tables import Cell, Column, Row, Table, beside, comparison, comparison_tables, ours, summary
from richbll_bench.tables.table import Better

NAME = "cifar"
SHARED = (
    "map",
    "bll",
    "rich_bll_s",
    "ll_laplace",
    "ll_dropout",
    "rich_bll_s_class",
    "rich_bll_ggn",
    "rich_bll_shared",
    "bll_tuned",
    "rich_bll_s_tuned",
    "rich_bll_ggn_tuned",
)
SMALL_SHARED = (  # beside methods with networks of their own
    "map",
    "bll",
    "rich_bll_s",
    "ll_laplace",
    "ll_dropout",
    "rich_bll_ggn",
    "rich_bll_s_tuned",
    "rich_bll_ggn_tuned",
)
WIDTH, EPOCHS = 32, 20
_SMALL_WIDTH, _SMALL_EPOCHS = 16, 6  # where methods train networks of their own
SIZE = ("width", "epochs", "num_images", "num_test", "per_class", "precision")
_COMPARED = (
    ("rich_bll_s", "bll"),
    ("rich_bll_s", "ll_laplace"),
    ("rich_bll_s_tuned", "bll_tuned"),
    ("rich_bll_s", "map"),
    ("rich_bll_s_tuned", "map"),
    ("rich_bll_ggn_tuned", "map"),
)
_OFFERED = {  # with the library's default score
    "rich_bll_s": "relative_variance",
    "rich_bll_s_tuned": "relative_variance",
    "rich_bll_ggn_tuned": "entropy",
}
_ALONE = ("max_prob", "energy", "entropy")  # scores of the network alone


def _evaluate(fitted: Fitted, task: Task, method: Method) -> dict[str, float]:
    if "public" not in task.kept:
        task.kept["public"] = {
            f"public_{name}": float(image_datasets.declaration(name).is_public("test")) for name in task.outside
        }
    return (
        evaluated(fitted, task, method.score)
        | task.kept["public"]
        | {"bfloat16": float(dtype_of(task.setting.precision) is not None)}
        | {
            "train_seconds": task.backbone.seconds if not method.own_networks else 0.0,
            "best_epoch": task.backbone.epoch if not method.own_networks else 0.0,
        }
    )


def run(job: Job) -> list[Record]:
    """All methods of a job, on one network for each seed."""
    return records_of(job, _evaluate)


def own_networks() -> list[str]:
    """Methods that train for themselves."""
    return [name for name in methods.names() if methods.load(name).own_networks]


def jobs(size: Size) -> list[Job]:
    """One for each seed and network."""
    made = []
    for dataset in size.datasets or ("cifar10",):
        main = settings(dataset, size, width=WIDTH, epochs=EPOCHS)
        small = settings(dataset, size, width=_SMALL_WIDTH, epochs=_SMALL_EPOCHS)
        for seed in range(size.num_seeds):
            made.append(_job(dataset, SHARED, seed, main, 1))
            if small != main:
                made.append(_job(dataset, SMALL_SHARED, seed, small, 1))
            for name in own_networks():
                made.append(_job(dataset, (name,), seed, small, methods.load(name).own_networks))
    return made


def _job(dataset: str, names: tuple[str, ...], seed: int, found: dict[str, Any], networks: int) -> Job:
    cost = found["width"] ** 1.4 * found["epochs"] * networks
    return Job(NAME, dataset, names, (seed,), found, run, cost)


# ---------------------------------------------------------------------- tables


def tables(records: Sequence[Record]) -> list[Table]:
    """For every data set and size: the paper's table, all measures, all scores, and pairs of methods."""
    first, others = [], []
    for (dataset, *size), found in _groups(list(map(_by_own_score, records))).items():
        words = size_words(dataset, size)
        first += _paper(dataset, found, words)
        others += [_measures(dataset, found, words), _scores(dataset, found, words)]
        others += [*_pairs(dataset, found, words), *_default_score(dataset, found, words)]
    return [*first, *others]


def _by_own_score(record: Record) -> Record:
    """What a method is judged by is for tables to say; records have all of its scores."""
    score, outside = methods.load(record.key.method).score, OUTSIDE[record.key.dataset]
    own = {f"{kind}_{name}": f"{kind}_{name}_{score}" for kind in ("auroc", "fpr95") for name in outside}
    return replace(record, metrics=record.metrics | {name: record.metrics[found] for name, found in own.items()})


def _groups(records: Sequence[Record]) -> dict[tuple[Any, ...], list[Record]]:
    """The largest networks first."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for dataset in dict.fromkeys(record.key.dataset for record in records):
        of_dataset = [record for record in records if record.key.dataset == dataset]
        found |= {(dataset, *size): some for size, some in by_settings(of_dataset, *SIZE).items()}
    return dict(sorted(found.items(), key=lambda item: (-(item[0][1] or 0), str(item[0]))))


def size_words(dataset: str, size: Sequence[Any]) -> str:
    """For titles: data set, width, epochs, and how many images if not all."""
    width, epochs, num_images, *_ = size
    limited = f", {num_images:,} images" if num_images else ""
    return f"{image_datasets.declaration(dataset).title}, width {width}, {epochs} epochs{limited}"


def _rows(found: Sequence[Record], block: int = 2) -> list[Row]:
    """Methods on record that the paper's table does not have."""
    listed = {row.name for row in paper_table("cifar10").rows}
    there = {record.key.method for record in found} & set(methods.names())
    return [Row(name, methods.load(name).title, block) for name in (*SHARED, *own_networks()) if name in there - listed]


def _paper(dataset: str, found: Sequence[Record], words: str) -> list[Table]:
    if dataset != "cifar10":
        return []
    paper = paper_table("cifar10")
    own = [name for name in own_networks() if any(record.key.method == name for record in found)]
    names = {record.key.method for record in found}
    if not own:  # they have networks of another size, and a table with these
        paper = replace(paper, rows=tuple(row for row in paper.rows if row.name not in own_networks()))
    table = beside(ours(found, paper, extra=_rows(found)), paper)
    notes = [
        "AUROC by each method's own score, which others may be told apart by as well: see the table of scores.",
        "The paper's network has width 128, 100 epochs. The rate falls along a half cosine; the paper says nothing.",
    ]
    if not own:
        notes.append("Methods that train networks of their own are in the table of smaller networks.")
    notes += [f"{methods.load(name).title}: {methods.load(name).source}" for name in methods.names() if name in names]
    if any(record.metrics.get("public_svhn") == 0 for record in found):
        notes.append("SVHN: digits cut again from the full numbers, a few grey levels from the public file.")
    return [_named(table, f"{NAME}-{slug(words)}", words, tuple(notes))]


def _named(table: Table, name: str, title: str, notes: tuple[str, ...] = ()) -> Table:
    return Table(name, title, table.columns, table.rows, (*table.notes, *notes))


def slug(words: str) -> str:
    """For names of tables and figures: of sizes that differ, they must too."""
    return "-".join("".join(c if c.isalnum() else " " for c in words.lower()).split())


def _measures(dataset: str, found: Sequence[Record], words: str) -> Table:
    columns = [
        Column("accuracy", "accuracy", dataset, "accuracy", "higher"),
        Column("nll", "NLL", dataset, "nll", "lower"),
        Column("nll_probit", "NLL, probit", dataset, "nll_probit", "lower"),
        Column("nll_bridge", "NLL, bridge", dataset, "nll_bridge", "lower"),
        Column("ece", "ECE", dataset, "ece", "lower"),
        Column("brier", "Brier", dataset, "brier", "lower"),
        *(
            Column(f"fpr95_{name}", f"FPR95 {_title(name)}", dataset, f"fpr95_{name}", "lower")
            for name in OUTSIDE[dataset]
        ),
        Column("fit_seconds", "fit, CPU s", dataset, "fit_seconds", decimals=1),
        Column("fit_yards", "fit, yards", dataset, "fit_yards", decimals=2),
        Column("fit_megabytes", "fit, MB", dataset, "fit_megabytes", decimals=0),
        Column("predict_ratio", "predict ÷ forward", dataset, "predict_ratio", decimals=3),
        Column("predict_ratio_score", "with score", dataset, "predict_ratio_score", decimals=3),
        Column("prior_variance", "τ²", dataset, "prior_variance"),
    ]
    names = [name for name in (*SHARED, *own_networks()) if any(r.key.method == name for r in found)]
    rows = tuple(Row(name, methods.load(name).title, 0, (None,) * len(columns)) for name in names)
    notes = (
        "A yard is a forward and backward pass over the same images. Predict: a batch of 256, the median of pairs.",
        "NLL by 50 draws of the logits; probit and bridge are closed forms of the same posterior.",
    )
    table = ours(found, Table("measures", "", tuple(columns), rows))
    return _named(table, f"{NAME}-measures-{slug(words)}", f"{words}: all measures", notes)


def _title(name: str) -> str:
    return image_datasets.declaration(name).title


def _scores(dataset: str, found: Sequence[Record], words: str) -> Table:
    """AUROC and FPR95 of every score of every method."""
    columns = [
        *(Column(name, _title(name), dataset, f"auroc_{name}", "higher") for name in OUTSIDE[dataset]),
        Column("errors", "own errors", dataset, "auroc_errors", "higher"),
        *(
            Column(f"fpr_{name}", f"FPR95 {_title(name)}", dataset, f"fpr95_{name}", "lower")
            for name in OUTSIDE[dataset]
        ),
    ]
    rows: list[Row] = []
    for method in (*SHARED, *own_networks()):
        of_method = [record for record in found if record.key.method == method]
        if not of_method:
            continue
        for score in score_names(list(of_method[0].metrics), OUTSIDE[dataset][0]):
            cells = tuple(_mean(of_method, f"{column.metric}_{score}") for column in columns)
            own = " (own)" if score == methods.load(method).score else ""
            title = f"{methods.load(method).title}: {score.replace('_', ' ')}{own}"
            rows.append(
                Row(f"{method}/{score}", title, len({row.name.split("/")[0] for row in rows} - {method}), cells)
            )
    notes = ("Scores with + add up parts, each in units of its spread over the validation images.",)
    return Table(f"{NAME}-scores-{slug(words)}", f"{words}: AUROC by score", tuple(columns), tuple(rows), notes)


def _mean(records: Sequence[Record], metric: str) -> Cell | None:
    values = [record.metrics[metric] for record in records if metric in record.metrics]
    return summary(values) if values else None


def _pairs(dataset: str, found: Sequence[Record], words: str) -> list[Table]:
    """By labels, and by one score for both, so that methods are compared and not scores."""
    better: dict[str, Better] = {"nll": "lower", "ece": "lower"}
    better |= {f"auroc_{name}_{score}": "higher" for score in ("variance", "entropy") for name in OUTSIDE[dataset]}
    pairs = [
        comparison(found, first, second, dataset=dataset, metric=metric, better=which)
        for first, second in _COMPARED
        for metric, which in better.items()
    ]
    title = f"{words}: pairs of methods, seed by seed"
    return [_named(table, f"{NAME}-paired-{slug(words)}", title) for table in comparison_tables(pairs)]


def _default_score(dataset: str, found: Sequence[Record], words: str) -> list[Table]:
    """The library's score beside those that need no posterior, seed by seed."""
    metrics = [f"auroc_{name}" for name in OUTSIDE[dataset]]
    by_score = []
    for name, score in [*_OFFERED.items(), *(("map", score) for score in _ALONE)]:
        for record in found:
            if record.key.method == name and f"{metrics[0]}_{score}" in record.metrics:
                key = replace(record.key, method=f"{name}, {score}")
                of_score = {metric: record.metrics[f"{metric}_{score}"] for metric in metrics}
                by_score.append(replace(record, key=key, metrics=of_score))
    pairs = [
        comparison(by_score, first, second, dataset=dataset, metric=metric, better="higher")
        for first in (f"{name}, {score}" for name, score in _OFFERED.items())
        for second in (f"map, {score}" for score in _ALONE)
        for metric in metrics
    ]
    title = f"{words}: the default score beside those of the network alone, seed by seed"
    return [_named(table, f"{NAME}-default-{slug(words)}", title) for table in comparison_tables(pairs)]


def figures(records: Sequence[Record]) -> list[Figure]:
    """Reliability and histograms of scores, drawn from the bins on record."""
    made = []
    for (dataset, *size), found in _groups(records).items():
        words = size_words(dataset, size)
        titles = {
            name: methods.load(name).title
            for name in (*SHARED, *own_networks())
            if any(record.key.method == name for record in found)
        }
        named = {name: _title(name) for name in OUTSIDE[dataset]}
        made.append(reliability_figure(f"{NAME}-reliability-{slug(words)}", words, found, titles))
        made.append(score_figure(f"{NAME}-histograms-{slug(words)}", words, found, titles, named))
    return made


experiment = Experiment(
    name=NAME,
    title="Image classification and images of other kinds",
    about="CNNs of CIFAR-10 on its test images, on house numbers and on CIFAR-100: who is sure where it should not be?",
    num_seeds=3,
    jobs=jobs,
    tables=tables,
    figures=figures,
    takes=("width", "epochs", "images"),
)
