"""The rule that `wheel-why` has chosen on seeds of its own; Rich-BLL, Rich-BLL (S) and BLL share it."""

from richbll_bench.bandits.last_layer import LastLayerRule
from richbll_bench.bandits.noise import NoiseRule

CHOSEN = LastLayerRule(noise=NoiseRule("local", scale=3000.0))
