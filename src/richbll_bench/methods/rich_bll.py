"""Rich-BLL: the gradients of all other weights, projected onto the last layer's features."""

from richbll_bench.posthoc import PostHoc, bayesian_last_layer

method = PostHoc(
    "rich_bll",
    "Rich-BLL",
    "The paper's method, exact L, prior variance 1, ridge as by default.",
    bayesian_last_layer(1.0),
)
