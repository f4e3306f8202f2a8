"""The rule of Rich-BLL, Rich-BLL (S) and BLL: from first trials on seeds of `wheel-why`, until its records decide."""

from richbll_bench.bandits.last_layer import LastLayerRule
from richbll_bench.bandits.noise import NoiseRule

CHOSEN = LastLayerRule(noise=NoiseRule("local", scale=3000.0))
