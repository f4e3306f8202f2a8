"""BLL: the last layer alone, with the noise of Rich-BLL and a prior variance chosen from the same ones."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import BLL
from richbll_bench.bandits.last_layer import LastLayer

kind = Kind(
    "NNGP (BLL)",
    "As Rich-BLL, with a multiple of the identity for a prior; its τ² is chosen from the same ones.",
    partial(LastLayer, rule=BLL),
    rule=BLL,
)
