"""Beyond the paper: what the scale of the last layer and of its prior does to BLL and to Rich-BLL.

The readout w₃ · (s a) / √n with w₃ divided by s is the same function for every s. A Bayesian last layer is not the
same: its prior is one on w₃, so a small s makes it sure of itself. AᵀA rescales itself with s, and
Rich-BLL does not notice.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from richbll_bench.experiment import Experiment, Figure, Job, Size
from richbll_bench.experiments.wine_ood import INSIDE, OUTSIDE, auroc
from richbll_bench.posthoc import PostHoc, bayesian_last_layer, tuned_last_layer
from richbll_bench.records import Record
from richbll_bench.regression.network import Scaled
from richbll_bench.regression.running import on_test_rows, records_of
from richbll_bench.regression.split import Split
from richbll_bench.regression.task import Fitted
from richbll_bench.tables import Cell, Column, Row, Table, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

DATASETS = ("boston", "concrete", "energy", "wine_red")
SCALES = (10.0, 1.0, 0.1, 0.01, 0.001)
PRIORS = (0.01, 1.0, 100.0)
METHODS = {"bll": "BLL", "bll_tuned": "BLL, prior tuned", "rich_bll": "Rich-BLL"}
_TUNED = torch.logspace(-8, 8, 33).tolist()
_USUAL = 1.0  # the prior variance beside which the tuned one is shown


def rescaled(model: nn.Module, scale: float) -> nn.Module:
    """The same function, whose last layer sees its input times `scale` and has weights divided by it."""
    model = copy.deepcopy(model)
    readout = model[-1] if isinstance(model, nn.Sequential) else None
    assert isinstance(readout, Scaled)
    readout.factor *= scale
    with torch.no_grad():
        readout.weight /= scale
    return model


def method(name: str, scale: float, prior_variance: float) -> PostHoc:
    """One of the three on a rescaled network."""
    fits = {
        "bll": bayesian_last_layer(prior_variance, enrich=False),
        "bll_tuned": tuned_last_layer(_TUNED),
        "rich_bll": bayesian_last_layer(prior_variance),
    }
    fit = fits[name]
    return PostHoc(name, METHODS[name], "", lambda model, data, noise: fit(rescaled(model, scale), data, noise))


def _scores(fitted: Fitted, part: Split, wines: bool) -> dict[str, float]:
    found = dict(on_test_rows(fitted, part))
    return found | ({f"auroc_{OUTSIDE}": auroc(fitted, part)} if wines else {})


def run(job: Job) -> list[Record]:
    """One scale and one prior variance, on the backbones of a data set."""
    scale, prior = job.settings["scale"], job.settings["prior_variance"]
    score = partial(_scores, wines=job.dataset == INSIDE)
    return records_of(job, lambda name: method(name, scale, prior), score)


def _jobs(size: Size) -> list[Job]:
    seeds = tuple(range(size.num_seeds))
    whole = Job("prior-scale", "", (), seeds, {"tiny": size.tiny}, run)
    return [
        replace(
            whole,
            dataset=dataset,
            methods=tuple(name for name in METHODS if prior == _USUAL or name != "bll_tuned"),
            settings=whole.settings | {"scale": scale, "prior_variance": prior},
        )
        for dataset in (DATASETS[:1] if size.tiny else DATASETS)
        for scale in (SCALES[1:3] if size.tiny else SCALES)
        for prior in (PRIORS[1:2] if size.tiny else PRIORS)
    ]


def _cell(records: Sequence[Record], dataset: str, name: str, scale: float, prior: float, metric: str) -> Cell | None:
    values = [
        record.metrics[metric]
        for record in records
        if (record.key.dataset, record.key.method) == (dataset, name)
        and (record.settings["scale"], record.settings["prior_variance"]) == (scale, prior)
        and metric in record.metrics
    ]
    return summary(values) if values else None


def _columns(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Data set, metric, title."""
    there = {record.key.dataset for record in records}
    columns = [(dataset, "nll", f"{dataset}, NLL") for dataset in DATASETS if dataset in there]
    columns += [(dataset, "coverage_90", f"{dataset}, 90 % cover") for dataset in DATASETS[:1] if dataset in there]
    return columns + ([(INSIDE, f"auroc_{OUTSIDE}", "wine, AUROC")] if INSIDE in there else [])


def _tables(records: Sequence[Record]) -> list[Table]:
    columns = _columns(records)
    scales = sorted({record.settings["scale"] for record in records}, reverse=True)
    priors = sorted({record.settings["prior_variance"] for record in records})
    rows = [
        Row(
            f"{name}/{scale}/{prior}",
            f"{title}, s = {scale:g}" + ("" if name == "bll_tuned" else f", τ² = {prior:g}"),
            number,
            tuple(_cell(records, dataset, name, scale, prior, metric) for dataset, metric, _ in columns),
        )
        for number, (name, title) in enumerate(METHODS.items())
        for prior in ([_USUAL] if name == "bll_tuned" else priors)
        for scale in scales
    ]
    heads = tuple(Column(f"{d}/{m}", title, d, m, decimals=3) for d, m, title in columns)
    return [Table("prior_scale", "Scale s of the last layer and variance τ² of its prior", heads, tuple(rows))]


def _figures(records: Sequence[Record]) -> list[Figure]:
    caption = (
        "The same functions, with the last layer's input multiplied by s and its weights divided by it. Means over "
        "seeds at τ² = 1; τ² = t for BLL is the same as τ² = 1 with s multiplied by √t."
    )
    return [Figure("prior_scale", "No prior to tune", caption, lambda: _draw(records))]


def _draw(records: Sequence[Record]) -> "Drawing":
    from matplotlib.figure import Figure as Drawing

    columns = [(d, m, t) for d, m, t in _columns(records) if m != "coverage_90"]
    figure = Drawing(figsize=(2.6 * len(columns), 2.8), layout="constrained")
    scales = sorted({record.settings["scale"] for record in records})
    for axes, (dataset, metric, title) in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        for name, label in METHODS.items():
            cells = [(s, _cell(records, dataset, name, s, _USUAL, metric)) for s in scales]
            points = [(s, cell.mean, cell.error or 0.0) for s, cell in cells if cell is not None]
            if points:
                axes.errorbar(*zip(*points, strict=True), label=label, marker="o", markersize=3, capsize=2)
        axes.set(xscale="log", xlabel="scale s of the last layer", title=title)
    axes.legend(frameon=False, fontsize=8)
    return figure


experiment = Experiment(
    "prior-scale",
    "The last layer's scale and its prior",
    "A network can be rescaled without changing what it computes. BLL's uncertainty changes with it unless its prior "
    "is tuned; Rich-BLL's does not.",
    10,
    _jobs,
    _tables,
    _figures,
)
