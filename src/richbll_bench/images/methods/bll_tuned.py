"""A plain Bayesian last layer whose scales the validation images have chosen."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "bll_tuned",
    "BLL, scales tuned",
    "BLL, noise and prior times the factor of the largest log-probability of the validation labels.",
    {"enrich": False, "class_posterior": "per_class", "noise_variance": 0.1},
    tuned=True,
)
