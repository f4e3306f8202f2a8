"""LinFullPost: a linear model of every arm, with the full covariance."""

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.linear import Linear

kind = Kind(
    "LinFullPost", "Riquelme et al. (2018): a₀ = b₀ = 6, λ = 0.25, two pulls of each arm first.", Linear, cost=0.1
)
