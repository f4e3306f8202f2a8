"""The rules of Rich-BLL and of BLL, chosen on seeds that the table does not use, those of `wheel-why`.

Of τ² = 3, 10 and 100 and b₀ = 1,000, 3,000 and 10,000 each has the pair with the lowest geometric mean of regret after
8,000 contexts at δ = 0.5 and 0.99: it is the same for both.
"""

from dataclasses import replace

from richbll_bench.bandits.last_layer import LastLayerRule
from richbll_bench.bandits.noise import NoiseRule

BASE = LastLayerRule(prior_variance=10.0, noise=NoiseRule("local", scale=10_000.0))
RICH_BLL = BASE
BLL = replace(BASE, enrich=False)
