"""`richbll report`: one page with the tables and figures of every experiment on record."""

from typing import Any


def make() -> Any:
    """The command, from the evidence, which is imported only when the command line runs."""
    from richbll_bench.commands.report import command

    return command
