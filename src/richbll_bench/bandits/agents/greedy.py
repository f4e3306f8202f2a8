"""Greedy: the network's best arm, always. What is gained by exploring is measured against it."""

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.neural import Neural

kind = Kind("Greedy", "The same network and schedule, without draws.", Neural, cost=0.7)
