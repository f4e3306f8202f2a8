"""Rich-BLL (S) whose scales the validation images have chosen."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_s_tuned",
    "Rich-BLL (S), scales tuned",
    "Rich-BLL (S), noise and prior times the factor of the largest log-probability of the validation labels.",
    {"ridge": 1.0, "class_posterior": "per_class", "noise_variance": 0.1},
    tuned=True,
)
