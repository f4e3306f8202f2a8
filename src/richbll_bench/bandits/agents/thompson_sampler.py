"""Rich-BLL by `richbll.bandits.ThompsonSampler`: the rule of Rich-BLL, played by the library."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.chosen import RICH_BLL
from richbll_bench.bandits.sampled import Sampled

kind = Kind(
    "Rich-BLL, by ThompsonSampler",
    "Rich-BLL's rule with the library's own sampler: replay, noise, projection, posterior and draws are richbll's; the "
    "network is trained by the same steps.",
    partial(Sampled, rule=RICH_BLL),
    cost=2.0,
    rule=("sampler", RICH_BLL),
)
