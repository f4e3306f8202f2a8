"""`richbll bench NAME`: the experiments of the paper and beyond."""

from typing import Any


def make() -> Any:
    """The command, from the evidence, which is imported only when the command line runs."""
    from richbll_bench.commands.bench import command

    return command
