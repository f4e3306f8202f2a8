"""Greedy: the network's best arm, always. What is gained by exploring is measured against it."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import SCHEDULE
from richbll_bench.bandits.neural import Neural

kind = Kind(
    "Greedy", "The network of Rich-BLL, without draws.", partial(Neural, schedule=SCHEDULE), cost=0.7, rule=SCHEDULE
)
