"""Last-layer Laplace with one precision for all classes."""

from richbll_bench.images.last_layer import LastLayer

method = LastLayer(
    "ll_laplace",
    "LL Laplace",
    "As the paper describes its baseline: softmax weighting, prior precision 1, a precision that all classes share; "
    "the paper's noise of 0.1 has no place in it, as p(1 − p) is the curvature.",
    {"enrich": False, "class_posterior": "shared", "curvature": "ggn"},
)
