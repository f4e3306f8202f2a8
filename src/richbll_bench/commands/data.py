"""`richbll data list | fetch NAME | check`: the data sets, where they are on this machine, and where to get them."""

import sys
from typing import Annotated

import typer
from tqdm import tqdm

from richbll_bench import datasets, image_datasets
from richbll_bench.data.dataset import Dataset
from richbll_bench.data.finding import find_all, search
from richbll_bench.data.folders import cache_folder
from richbll_bench.errors import DatasetError, MissingDatasetError
from richbll_bench.images.dataset import ImageDataset

app = typer.Typer(help="The data sets of the benchmarks.", no_args_is_help=True, add_completion=False)

Names = Annotated[list[str] | None, typer.Argument(help="Names of data sets; all when none is given.")]


@app.command("list")
def list_all() -> None:
    """Show every data set: its target, and where it is on this machine."""
    rows = []
    for dataset in map(_declaration, _names()):
        paths = [search(file).path for file in dataset.files]
        here = [str(path) for path in paths if path is not None]
        where = here[0] if len(here) == len(paths) else "not here" if not here else f"{len(here)} of {len(paths)} files"
        rows.append((dataset.name, dataset.title, dataset.target, where))
    _print_columns([("name", "title", "target", "file"), *rows])
    print(f"Searched: the folders of $RICHBLL_DATA, then {cache_folder()}.")


@app.command()
def fetch(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch every data set.")] = False,
) -> None:
    """Download data sets that are not on this machine yet, check them, and say where they are."""
    if everything == bool(names):
        raise DatasetError(f"Name the data sets to fetch, or say --all; there are {', '.join(_names())}.")
    wanted = [_declaration(name) for name in names or _names()]
    failures = []
    for dataset in wanted:
        try:
            print(f"{dataset.name}: {_fetch(dataset)}")
        except MissingDatasetError as error:
            failures.append(str(error))
    if failures:
        raise MissingDatasetError("\n".join(failures))


@app.command()
def check(names: Names = None) -> None:
    """Compare checksums. Fails when a file is not what it should be, or when a data set that was named is not here."""
    failures = []
    for dataset in [_declaration(name) for name in names or _names()]:
        found = [search(file) for file in dataset.files]
        wrong = [f"{dataset.name}: {error}" for one in found for error in one.wrong]
        missing = [file.file for file, one in zip(dataset.files, found, strict=True) if one.path is None]
        failures += wrong
        if not missing:
            print(f"{dataset.name}: right, {found[0].path}")
        elif not wrong:
            part = "" if len(missing) == len(found) else f", {', '.join(missing)}"
            print(f"{dataset.name}: not here{part} (richbll data fetch {dataset.name})")
        if names and missing and not wrong:
            failures.append(f"{dataset.name} is not here.")
    if failures:
        raise DatasetError("\n".join(failures))


def _names() -> list[str]:
    """Tables first, then images."""
    return [*datasets.names(), *image_datasets.names()]


def _declaration(name: str) -> Dataset | ImageDataset:
    return image_datasets.declaration(name) if name in image_datasets.names() else datasets.declaration(name)


def _fetch(dataset: Dataset | ImageDataset) -> str:
    with tqdm(desc=dataset.name, unit="B", unit_scale=True, delay=1, leave=False, file=sys.stderr, disable=None) as bar:

        def progress(received: int, total: int | None) -> None:
            bar.total = total
            bar.update(received - bar.n)

        return str(find_all(dataset.files, progress=progress)[0])


def _print_columns(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
