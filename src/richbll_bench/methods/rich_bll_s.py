"""Rich-BLL from a subsample of the rows."""

from richbll_bench.posthoc import PostHoc, bayesian_last_layer

method = PostHoc(
    "rich_bll_s",
    "Rich-BLL (S)",
    "The paper's subsampled variant: transform and posterior from 40 % of the rows, never fewer than features.",
    bayesian_last_layer(1.0, subsample=0.4),
)
