"""Last-layer Laplace with one precision for all classes."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "ll_laplace",
    "LL Laplace",
    "As the paper describes its baseline: softmax weighting, prior precision 1, a precision that all classes share.",
    {"enrich": False, "class_posterior": "shared", "curvature": "ggn"},
)
