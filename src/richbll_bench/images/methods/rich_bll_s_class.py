"""Rich-BLL (S) with one transform for each class, which the paper tried and left."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_s_class",
    "Rich-BLL (S), transform of each class",
    "The paper's other construction: gradients of a class's logit are projected onto that class's features.",
    {"ridge": 1.0, "transform": "per_class", "class_posterior": "per_class", "noise_variance": 0.1},
)
