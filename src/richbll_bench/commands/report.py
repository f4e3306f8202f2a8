"""`richbll report`: one page of HTML from the records."""

from pathlib import Path
from typing import Annotated

import typer

from richbll_bench.commands.bench import RECORDS
from richbll_bench.errors import RecordError
from richbll_bench.records import Records
from richbll_bench.report import sections, write_page


def command(
    records: Annotated[Path, typer.Option(help="Folder of the records, one file for each experiment.")] = RECORDS,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    tiny: Annotated[bool, typer.Option("--tiny", help="The records of `richbll bench --tiny`.")] = False,
) -> None:
    """Write one page with the tables and figures of every experiment on record; it needs no other file."""
    folder = records / "tiny" if tiny else records
    if not folder.is_dir():
        raise RecordError(f"There is no folder {folder}: `richbll bench NAME{' --tiny' if tiny else ''}` makes one.")
    found = sections(Records(folder), tiny=tiny)
    write_page(out, found, tiny=tiny)
    print(f"{out}: {sum(section.cost is not None for section in found)} of {len(found)} experiments have records")
    for section in found:
        for problem in section.problems:
            print(f"{section.name}: {problem}")
