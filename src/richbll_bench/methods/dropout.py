"""MC dropout in both hidden layers."""

from richbll_bench.regression.dropout import McDropout

SETTINGS = (
    "rates .005, .01, .05 and .1, a common public grid, the rate by validation NLL; "
    "50 passes; trained like the backbone; the noise is the validation error of the passes' mean."
)
method = McDropout("dropout", "Dropout", f"Gal and Ghahramani (2016), dropout after both hidden layers: {SETTINGS}")
