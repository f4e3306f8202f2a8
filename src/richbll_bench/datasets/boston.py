"""Boston Housing: the median value of homes (in 1000 dollars) in 506 census tracts."""

from richbll_bench.data.conversion import with_header
from richbll_bench.data.dataset import Source, csv_dataset
from richbll_bench.data.dropout_experiments import dropout_experiments

_COLUMNS = "crim", "zn", "indus", "chas", "nox", "rm", "age", "dis", "rad", "tax", "ptratio", "b", "lstat", "medv"
_SHIPPED = "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a"  # the same bytes at both addresses
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/housing.data"

dataset = csv_dataset(
    __name__,
    title="Boston Housing",
    file="uci/boston.csv",
    sha256="dabe774132cf1f35464a048f213b1d4f39f64ad9efb1157d64d457702f72e19b",
    target="medv",
    sources=[
        dropout_experiments("bostonHousing", _SHIPPED, _COLUMNS),
        Source(_UCI, _SHIPPED, with_header(*_COLUMNS)),
    ],
)
