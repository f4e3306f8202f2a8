"""LinDiagPost: a linear model of every arm, whose covariance has a diagonal inverse."""

from functools import partial

from richbll_bench.bandits.agent import Kind
from richbll_bench.bandits.linear import Linear

kind = Kind(
    "LinDiagPost", "As LinFullPost, with the diagonal of the precision alone.", partial(Linear, diagonal=True), 0.1
)
