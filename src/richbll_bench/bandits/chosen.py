"""The rules of Rich-BLL and of BLL, chosen on seeds that the table does not use.

What they share, BASE, is from trials on those seeds. The prior variance of BLL is the one of {1, 3, 10, 100}, prior
variance and ridge of Rich-BLL are the pair of these and of {1e-2, 1, 100}, that has the lowest regret in the records of
`wheel-why`, by the geometric mean over difficulties and seeds. How fast the rate of training falls is that of
`wheel-rate`, the same for both.
"""

from dataclasses import replace

from richbll_bench.bandits.last_layer import LastLayerRule
from richbll_bench.bandits.noise import NoiseRule

BASE = LastLayerRule(prior_variance=10.0, noise=NoiseRule("local", scale=10_000.0))
FIRST_RICH_BLL = replace(BASE, prior_variance=3.0)  # before ridge and rate were chosen: a first table was played so
FIRST_BLL = replace(BASE, prior_variance=100.0, enrich=False)
RICH_PAIR = replace(BASE, prior_variance=3.0, ridge=100.0)
SCHEDULE = replace(BASE.schedule, decay=1.0)
RICH_BLL = replace(RICH_PAIR, schedule=SCHEDULE)
BLL = replace(BASE, prior_variance=10.0, enrich=False, schedule=SCHEDULE)
