"""A CSV of numbers as inputs and targets."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from richbll_bench.errors import ContentError


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, in the file's own units and order."""

    x: NDArray[np.float64]  # (N, d)
    y: NDArray[np.float64]  # (N,)
    feature_names: tuple[str, ...]
    target_name: str


def read_csv(path: Path, *, target: str, separator: str = ",") -> Examples:
    """All columns but the target are inputs; a value that is not a finite number is an error that says where."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, delimiter=separator) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ContentError(f"{path} cannot be read as CSV ({error}).") from error
    if len(lines) < 2:
        raise ContentError(f"{path} has {len(lines)} line(s): a header and at least one row are needed.")
    names = [name.strip() for name in lines[0]]
    if names.count(target) != 1:
        raise ContentError(f"{path}: {names.count(target)} columns are named {target!r}, of {', '.join(names)}.")
    table = np.array([_numbers(path, number, names, line) for number, line in enumerate(lines[1:], start=1)])
    column = names.index(target)
    features = tuple(name for name in names if name != target)
    return Examples(np.delete(table, column, axis=1), table[:, column].copy(), features, target)


def _numbers(path: Path, row: int, names: list[str], line: list[str]) -> list[float]:
    if len(line) != len(names):
        raise ContentError(f"{path}, row {row}: {len(line)} values for {len(names)} columns.")
    values = []
    for name, text in zip(names, line, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise ContentError(f"{path}, row {row}, column {name!r}: {text!r} is not a finite number.")
        values.append(value)
    return values
