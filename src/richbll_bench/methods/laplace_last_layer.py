"""Last-layer Laplace: the plain last layer whose prior variance is that of the largest evidence."""

import torch

from richbll_bench.posthoc import PostHoc, tuned_last_layer

method = PostHoc(
    "laplace_last_layer",
    "Last-layer Laplace",
    "For squared error Laplace's approximation is exact: a Bayesian last layer, prior variance by evidence on a grid "
    "of 33 values from 1e-4 to 1e4, as laplace-torch tunes it.",
    tuned_last_layer(torch.logspace(-4, 4, 33).tolist()),
)
