"""Rich-BLL with the softmax's own curvature: images near a boundary say more about the weights than sure ones."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_ggn",
    "Rich-BLL (S), softmax-weighted",
    "Beyond the paper: every image counts in the posterior of class c by p_c (1 − p_c); ridge 1, prior variance 1.",
    {"ridge": 1.0, "class_posterior": "per_class", "curvature": "ggn"},
    score="entropy",
)
