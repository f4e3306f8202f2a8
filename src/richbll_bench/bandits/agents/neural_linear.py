"""NeuralLinear with the prior of its paper."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.conjugate import NoisePrior
from richbll_bench.bandits.neural_linear import NeuralLinear, NeuralLinearRule

_RULE = NeuralLinearRule(NoisePrior(shape=6.0, scale=6.0, precision=0.25))

kind = Kind(
    "NeuralLinear",
    "Riquelme et al. (2018): a₀ = b₀ = 6, λ = 0.25, on the last hidden layer; the network is conditioned on the action "
    "and trained as for Rich-BLL, but for a rate that falls as N^(-1/4), not as 1/N.",
    partial(NeuralLinear, rule=_RULE),
    rule=_RULE,
)
