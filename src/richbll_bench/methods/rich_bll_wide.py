"""Rich-BLL whose gradients are projected onto the features of all layers."""

from richbll_bench.posthoc import PostHoc, bayesian_last_layer

method = PostHoc(
    "rich_bll_wide",
    "Rich-BLL, wider basis",
    "basis=\"all_layers\": the hidden layers' activations join the last layer's features.",
    bayesian_last_layer(1.0, basis="all_layers"),
)
