"""Softmax-weighted Rich-BLL whose prior scale the validation images have chosen."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_ggn_tuned",
    "Rich-BLL (S), softmax-weighted, prior tuned",
    "The prior variance has the largest log-probability of the validation labels.",
    {"ridge": 1.0, "class_posterior": "per_class", "curvature": "ggn"},
    score="entropy",
    tuned=True,
)
