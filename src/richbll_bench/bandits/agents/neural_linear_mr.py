"""NeuralLinear-MR: the same with the prior that was tuned on the mushroom bandit."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.conjugate import NoisePrior
from richbll_bench.bandits.neural_linear import NeuralLinear, NeuralLinearRule

_RULE = NeuralLinearRule(NoisePrior(shape=12.0, scale=30.0, precision=23.0))

kind = Kind(
    "NeuralLinear-MR",
    "The same with what was tuned on Mushroom: a₀ = 12, b₀ = 30, λ = 23.",
    partial(NeuralLinear, rule=_RULE),
    rule=_RULE,
)
