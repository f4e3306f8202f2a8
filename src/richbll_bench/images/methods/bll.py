"""A plain Bayesian last layer, the paper's NNGP."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "bll",
    "NNGP (BLL)",
    "Rich-BLL's construction without the transform: one posterior for each class, noise 0.1.",
    {"enrich": False, "class_posterior": "per_class", "noise_variance": 0.1},
)
