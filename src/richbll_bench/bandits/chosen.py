"""The rules of Rich-BLL and of BLL, by the records of `wheel-why`.

What both share is BASE; each has the prior variance of {1, 3, 10, 100} with the lowest regret there, the geometric mean
over difficulties and seeds.
"""

from dataclasses import replace

from richbll_bench.bandits.last_layer import LastLayerRule
from richbll_bench.bandits.noise import NoiseRule

BASE = LastLayerRule(prior_variance=3.0, noise=NoiseRule("local", scale=1000.0))
RICH_BLL = replace(BASE, prior_variance=3.0)
BLL = replace(BASE, prior_variance=10.0, enrich=False)
