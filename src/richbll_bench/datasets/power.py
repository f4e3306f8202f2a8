"""Combined-cycle power plant: hourly electrical output (in MW) by the weather, 9568 hours."""

from richbll_bench.data.dataset import csv_dataset
from richbll_bench.data.dropout_experiments import dropout_experiments

_SHIPPED = "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31"

dataset = csv_dataset(
    __name__,
    title="Combined-cycle power plant",
    file="uci/power.csv",
    sha256="76855630b59fb9b2ef08e02d5907f8c73f18d97a476ac25f06cca6dd7fe2df21",
    target="PE",
    sources=[dropout_experiments("power-plant", _SHIPPED, ("AT", "V", "AP", "RH", "PE"))],
)
