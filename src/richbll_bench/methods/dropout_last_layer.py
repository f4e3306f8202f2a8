"""MC dropout before the last layer alone."""

from richbll_bench.methods.dropout import SETTINGS
from richbll_bench.regression.dropout import McDropout

method = McDropout(
    "dropout_last_layer",
    "Dropout, last layer",
    f"Gal and Ghahramani (2016), dropout before the last layer alone: {SETTINGS}",
    last_only=True,
)
