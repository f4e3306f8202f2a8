"""The exact Gaussian process of all weights around the trained network: the linearised Laplace approximation."""

from richbll_bench.posthoc import PostHoc, ntk_gp

method = PostHoc(
    "ntk_gp",
    "NTK-GP (linearised Laplace)",
    "What Rich-BLL approximates, by N × N algebra in float64, prior variance 1; up to 2500 rows.",
    ntk_gp(1.0),
)
