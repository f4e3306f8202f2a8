"""The paper's table of out-of-distribution detection: networks of red wines, asked about white ones."""

from collections.abc import Sequence

from richbll_bench import class_metrics, datasets, methods
from richbll_bench.experiment import Experiment, Job, Size
from richbll_bench.paper_numbers import paper_table
from richbll_bench.records import Record
from richbll_bench.regression.running import records_of
from richbll_bench.regression.split import Split
from richbll_bench.regression.task import Fitted
from richbll_bench.tables import Row, Table, beside, comparison, comparison_tables, ours

INSIDE, OUTSIDE = "wine_red", "wine_white"
_ON_BACKBONES = ("rich_bll", "rich_bll_s", "bll", "rich_bll_wide", "laplace_last_layer", "ntk_gp")
_TRAINED = ("vbll", "ensemble", "dropout", "dropout_last_layer", "swag", "bbb", "rbf_gp")


def auroc(fitted: Fitted, part: Split) -> float:
    """How well the epistemic variance tells white wines from the red ones of the test rows."""
    outside = part.prepared(datasets.load(OUTSIDE).x)
    red, white = (fitted.predict(x).epistemic_variance.double().flatten() for x in (part.test[0], outside))
    return class_metrics.auroc(red, white)


def run(job: Job) -> list[Record]:
    """Fit every method for all seeds, and ask it about both kinds."""
    return records_of(job, methods.load, lambda fitted, part: {f"auroc_{OUTSIDE}": auroc(fitted, part)} | fitted.chosen)


def _jobs(size: Size) -> list[Job]:
    seeds, settings = tuple(range(size.num_seeds)), {"tiny": size.tiny}
    trained = [(name,) for name in _TRAINED if name in methods.names()]
    return [Job("wine-ood", INSIDE, names, seeds, settings, run) for names in (_ON_BACKBONES, *trained)]


def _tables(records: Sequence[Record]) -> list[Table]:
    paper = paper_table("wine_ood")
    listed = {row.name for row in paper.rows}
    others = [name for name in (*_ON_BACKBONES, *_TRAINED) if name not in listed and name in methods.names()]
    table = ours(records, paper, extra=[Row(name, methods.load(name).title, 1) for name in others])
    metric = f"auroc_{OUTSIDE}"
    pairs = [
        comparison(records, "rich_bll", other, dataset=INSIDE, metric=metric, better="higher")
        for other in ("bll", "vbll")
    ]
    return [beside(table, paper), *comparison_tables(pairs)]


experiment = Experiment(
    "wine-ood",
    "Wine: white wines for a network of red ones",
    "Networks of the Wine column, asked about all white wines; the epistemic variance is the score.",
    10,
    _jobs,
    _tables,
)
