"""The plain Bayesian last layer, which is the NNGP of the trained features."""

from richbll_bench.posthoc import PostHoc, bayesian_last_layer

method = PostHoc(
    "bll",
    "NNGP (BLL)",
    "Bayesian linear regression on the last layer's features, prior variance 1.",
    bayesian_last_layer(1.0, enrich=False),
)
