"""Tables of numbers with a label in each row: CSV and Parquet."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError, unknown

Row = tuple[str, Sequence[Any]]
"""Where a row is, in words, and its cells. The first row of a file is its header."""


@dataclass(frozen=True)
class Table:
    """What a table holds, row by row, in its own order.

    Attributes
    ----------
    features
        Float64 numbers, a column for each name in ``names``.
    labels, apart
        The text of each row's label, and of the column that was to be kept apart, if one was.
    """

    names: tuple[str, ...]
    features: NDArray[np.float64]
    labels: tuple[str, ...]
    apart: tuple[str, ...] | None = None


def read_table(path: Path, label: str | None, apart: str | None = None) -> Table:
    """Read a .csv or .parquet file whose columns are numbers but for the label and the one kept apart.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "flowers.csv")
    ...     _ = file.write_text("width,length,kind\\n1.5,2,iris\\n0.5,3,rose\\n")
    ...     table = read_table(file, label="kind")
    >>> table.names, table.features.tolist(), table.labels
    (('width', 'length'), [[1.5, 2.0], [0.5, 3.0]], ('iris', 'rose'))
    """
    rows = (_parquet if path.suffix.lower() == ".parquet" else _csv)(path)
    header = _header(path, next(rows, ("", []))[1])
    if label is None:
        raise DataError(f"{path}: which column is the label? Say so with --label, one of: {', '.join(header)}.")
    for column in (label, *([] if apart is None else [apart])):
        if column not in header:
            raise unknown(f"column of {path}:", column, header)
    if label == apart:
        raise DataError(f"{path}: {label!r} cannot be both the label and what tasks are made by.")
    numeric = [(place, name) for place, name in enumerate(header) if name not in (label, apart)]
    if not numeric:
        raise DataError(f"{path}: there is no column of numbers besides {label!r}.")
    places = {name: place for place, name in enumerate(header)}
    features, labels, groups = [], [], []
    for where, cells in rows:
        if len(cells) != len(header):
            raise DataError(f"{path}, {where}: {len(cells)} cells where the header has {len(header)}.")
        features.append([_number(path, where, name, cells[place]) for place, name in numeric])
        labels.append(_text(path, where, label, cells[places[label]]))
        if apart is not None:
            groups.append(_text(path, where, apart, cells[places[apart]]))
    if not labels:
        raise DataError(f"{path}: there are no rows in it.")
    return Table(
        tuple(name for _, name in numeric),
        np.array(features, dtype=np.float64),
        tuple(labels),
        None if apart is None else tuple(groups),
    )


def _header(path: Path, cells: Sequence[Any]) -> list[str]:
    names = [str(cell).strip() for cell in cells]
    if not names or not all(names) or len(set(names)) < len(names):
        raise DataError(f"{path}: the first line must name every column, each differently.")
    if all(map(_is_number, names)):
        raise DataError(f"{path}: the first line must name the columns, and holds numbers.")
    return names


def _number(path: Path, where: str, column: str, cell: Any) -> float:
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return number
    if cell is None or str(cell).strip().lower() in ("", "nan", "na", "null", "none", "?"):
        problem = "a value is missing. Fill it in or leave the row out"
    else:
        problem = f"{str(cell)[:40]!r} is not a finite number. Write it as one, or leave the column out"
    raise DataError(f"{path}, {where}, column {column!r}: {problem}.")


def _text(path: Path, where: str, column: str, cell: Any) -> str:
    if cell is None or not str(cell).strip():
        raise DataError(f"{path}, {where}, column {column!r}: a value is missing. Fill it in or leave the row out.")
    return str(cell).strip()


def _csv(path: Path) -> Iterator[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            delimiter = max(",;\t", key=file.readline().count)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter)
            for cells in reader:
                if cells:
                    yield f"line {reader.line_num}", cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a table of UTF-8 text ({error}).") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow.parquet import read_table as read
    except ImportError:
        raise DataError(f"{path}: pyarrow is needed to read it. Install it with: pip install 'gmed[parquet]'") from None
    try:
        table = read(path, memory_map=False)
    except Exception as error:  # what Arrow raises depends on the damage
        raise DataError(f"{path}: not a sound Parquet file ({error}).") from None
    yield "the schema", table.column_names
    for number, cells in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True), 1):
        yield f"row {number}", cells
