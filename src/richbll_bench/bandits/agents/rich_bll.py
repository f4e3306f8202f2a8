"""Rich-BLL: the posterior of all rows."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import RICH_BLL
from richbll_bench.bandits.last_layer import LastLayer

kind = Kind(
    "Rich-BLL",
    "The posterior of all rows, its projection from 512; the noise differs from place to place. τ², ridge, the noise's "
    "prior and the training were chosen on the wheel, with other seeds.",
    partial(LastLayer, rule=RICH_BLL),
    rule=RICH_BLL,
)
