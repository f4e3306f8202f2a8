"""The trained network alone."""

from richbll_bench.posthoc import PostHoc, network_alone

method = PostHoc(
    "map",
    "MAP",
    "The backbone's own prediction; all of its uncertainty is the noise.",
    network_alone,
)
