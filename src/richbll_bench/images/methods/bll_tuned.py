"""A plain Bayesian last layer whose prior scale the validation images have chosen."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "bll_tuned",
    "BLL, prior tuned",
    "BLL with the prior variance of the largest log-probability of the validation labels.",
    {"enrich": False, "class_posterior": "per_class", "noise_variance": 0.1},
    tuned=True,
)
