"""Rich-BLL (S) whose prior scale the validation images have chosen."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_s_tuned",
    "Rich-BLL (S), prior tuned",
    "Rich-BLL (S) with the prior variance of the largest log-probability of the validation labels.",
    {"ridge": 1.0, "class_posterior": "per_class", "noise_variance": 0.1},
    tuned=True,
)
