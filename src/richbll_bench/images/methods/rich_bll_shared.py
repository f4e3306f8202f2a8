"""Rich-BLL with one posterior for all classes, which is sure of all that any class has shown it."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_shared",
    "Rich-BLL (S), one posterior",
    "Beyond the paper: the images of all classes make one posterior, which all logits share; ridge 1, noise 0.1.",
    {"ridge": 1.0, "class_posterior": "shared", "noise_variance": 0.1},
    score="entropy",
)
