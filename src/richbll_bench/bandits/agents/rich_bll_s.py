"""Rich-BLL (S): posterior and projection from a subsample of the rows, scaled to all of them."""

from dataclasses import replace
from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import RICH_BLL
from richbll_bench.bandits.last_layer import LastLayer

_RULE = replace(RICH_BLL, posterior_rows=2048)

kind = Kind(
    "Rich-BLL (S)",
    "As Rich-BLL, with 2048 rows for the posterior.",
    partial(LastLayer, rule=_RULE),
    rule=_RULE,
)
