"""Which rows a subsample takes."""

import numpy as np
import pytest

from richbll.core.subsample import smallest, subsample_size
from richbll.errors import OptionError
from richbll.rng import child_seed, row_keys


def test_keys_do_not_depend_on_how_the_stream_is_cut() -> None:
    whole = row_keys(3, 0, 100)
    parts = np.concatenate([row_keys(3, start, 25) for start in range(0, 100, 25)])
    assert (whole == parts).all()
    assert len(set(whole.tolist())) == 100


def test_other_seeds_draw_other_rows_and_rows_are_drawn_evenly() -> None:
    chosen = [smallest(row_keys(seed, 0, 200), 50) for seed in range(400)]
    assert all(mask.sum() == 50 for mask in chosen)
    rate = np.mean(chosen, axis=0)  # each of 200 rows: 0.25 ± 5 standard errors of a binomial proportion
    assert abs(rate - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 400)
    assert (chosen[0] != chosen[1]).any()


def test_addresses_are_hashed_not_added() -> None:
    seeds = {child_seed(seed, path) for seed in range(50) for path in ("a", "b", "sketch/1", "sketch/2")}
    assert len(seeds) == 200


@pytest.mark.parametrize(
    ("subsample", "num_data", "r", "k"), [(100, None, 51, 100), (10, None, 51, 51), (0.4, 500, 51, 200), (1.0, 9, 3, 9)]
)
def test_size(subsample, num_data, r, k) -> None:
    assert subsample_size(subsample, num_data, r) == k


@pytest.mark.parametrize("bad", [0, -3, 0.0, 1.5, True, "half"])
def test_bad_sizes(bad) -> None:
    with pytest.raises(OptionError, match="subsample="):
        subsample_size(bad, 100, 5)


def test_a_fraction_of_an_unknown_length_is_refused_with_advice() -> None:
    with pytest.raises(OptionError, match="give a number of rows"):
        subsample_size(0.5, None, 5)
