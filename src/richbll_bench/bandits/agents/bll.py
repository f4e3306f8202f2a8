"""BLL: the last layer alone, with the prior scale and the noise of Rich-BLL."""

from dataclasses import replace
from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import CHOSEN
from richbll_bench.bandits.last_layer import LastLayer

kind = Kind(
    "NNGP (BLL)", "As Rich-BLL, with the identity for a prior.", partial(LastLayer, rule=replace(CHOSEN, enrich=False))
)
