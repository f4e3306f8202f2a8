"""Concrete: the compressive strength (in MPa) of 1030 mixtures by their composition and age."""

from richbll_bench.data.dataset import csv_dataset
from richbll_bench.data.dropout_experiments import dropout_experiments

_COLUMNS = (
    "cement",
    "slag",
    "fly_ash",
    "water",
    "superplasticizer",
    "coarse_aggregate",
    "fine_aggregate",
    "age",
    "strength",
)
_SHIPPED = "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de"

dataset = csv_dataset(
    __name__,
    title="Concrete strength",
    file="uci/concrete.csv",
    sha256="daba1955a29f10d91588070c86cb54e449ce74afcf5a631cfc108047a5f20e0e",
    target="strength",
    sources=[dropout_experiments("concrete", _SHIPPED, _COLUMNS)],
)
