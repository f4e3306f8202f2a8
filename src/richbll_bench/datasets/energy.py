"""Energy efficiency: the heating load of 768 simulated buildings, which are a full factorial design."""

from richbll_bench.data.dataset import csv_dataset
from richbll_bench.data.dropout_experiments import dropout_experiments

_COLUMNS = (
    "relative_compactness",
    "surface_area",
    "wall_area",
    "roof_area",
    "overall_height",
    "orientation",
    "glazing_area",
    "glazing_distribution",
    "heating_load",
)
_SHIPPED = "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950"

dataset = csv_dataset(
    __name__,
    title="Energy efficiency",
    file="uci/energy.csv",
    sha256="e7b919799f8d37e730f8b87c1979432bd14232c66c5de688721e5fa7d16ae801",
    target="heating_load",
    sources=[dropout_experiments("energy", _SHIPPED, _COLUMNS)],
)
