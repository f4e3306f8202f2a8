"""Greedy: the network's best arm, always. What is gained by exploring is measured against it."""

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.neural import Neural
from richbll_bench.bandits.training import Schedule

_SOURCE = "The network of Rich-BLL, without draws; its rate falls as NeuralLinear's."

kind = Kind("Greedy", _SOURCE, Neural, cost=0.7, rule=Schedule())
