"""`richbll merge a.safetensors b.safetensors --out all.safetensors`: posteriors of separate jobs as one."""

from pathlib import Path
from typing import Annotated

import typer

from richbll.checks import human_bytes
from richbll.merging import merge


def command(
    files: Annotated[list[Path], typer.Argument(help="Files that save(path, moments=True) wrote.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the merged posterior.")],
) -> None:
    """Add up posteriors that were fitted to parts of the data."""
    merge(files, out)
    print(f"{out}: {len(files)} file(s) merged, {human_bytes(out.stat().st_size)}")
