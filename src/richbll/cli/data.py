"""`richbll data list | fetch NAME | check`: the data sets of the benchmarks."""

from typing import Any


def group() -> Any:
    """The commands below `data`, from the evidence, which is imported only when the command line runs."""
    from richbll_bench.commands.data import app

    return app
