"""The paper's Rich-BLL (S): one transform for all classes, one posterior for each."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "rich_bll_s",
    "Rich-BLL (S)",
    "The paper's: 1,024 images of each class, ridge 1, noise 0.1, prior variance 1, the predicted class's variance.",
    {"ridge": 1.0, "class_posterior": "per_class", "noise_variance": 0.1},
)
