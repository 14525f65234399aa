"""Readers of tables of numbers with a label in each row: CSV and Parquet."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError, GmedError, unknown
from gmed.io.files import check_regular, check_room, reading

Row = tuple[str, Sequence[Any]]
"""The location of a row, for messages, and its cells. The first row of a file is its header."""


TABLES = (".csv", ".csv.gz", ".parquet")
"""File name suffixes of tables."""

MAX_LINE = 2**24
"""Maximum number of characters in a line, so that a small compressed file cannot fill memory."""


def is_table(path: Path) -> bool:
    """Return whether a file is named like a table.

    >>> is_table(Path("rows.csv.gz")), is_table(Path("images.gz"))
    (True, False)
    """
    return path.name.lower().endswith(TABLES)


@dataclass(frozen=True)
class Table:
    """The content of a table, with rows in file order.

    Attributes
    ----------
    features
        Float64 numbers, one column for each name in ``names``.
    labels, groups
        The label of each row as text, and the value of the group column, if there is one.
    """

    names: tuple[str, ...]
    features: NDArray[np.float64]
    labels: tuple[str, ...]
    groups: tuple[str, ...] | None = None


def read_table(path: Path, label: str | None, group: str | None = None, drop: Sequence[str] = ()) -> Table:
    """Read a table (:data:`TABLES`) whose columns are numbers except for ``label``, ``group`` and those in ``drop``.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "flowers.csv")
    ...     _ = file.write_text("width,length,kind\\n1.5,2,iris\\n0.5,3,rose\\n")
    ...     table = read_table(file, label="kind")
    >>> table.names, table.features.tolist(), table.labels
    (('width', 'length'), [[1.5, 2.0], [0.5, 3.0]], ('iris', 'rose'))
    """
    file = TableFile(path)
    if label is None:
        raise DataError(
            f"{path}: a label column is required. Choose it with --label, one of: {', '.join(file.header)}."
        )
    text_columns = [label, *([] if group is None else [group])]
    file.check([*text_columns, *drop])
    if label == group:
        raise DataError(f"{path}: {label!r} cannot be both the label column and the column that defines the tasks.")
    for name in text_columns:
        if name in drop:
            raise DataError(
                f"{path}: {name!r} cannot be dropped: it is the label or the column that defines the tasks."
            )
    parts, size = list[Table](), 0
    for part in file.batches(file.others([*text_columns, *drop]), label, group):
        parts.append(part)
        size += part.features.nbytes
        check_room(path, "the table", size)
    if not parts:
        raise DataError(f"{path}: the table has no rows.")
    return Table(
        parts[0].names,
        np.concatenate([part.features for part in parts]),
        tuple(text for part in parts for text in part.labels),
        None if group is None else tuple(text for part in parts for text in part.groups or ()),
    )


class TableFile:
    """A .csv, .csv.gz or .parquet file, read in batches of rows in order, so that it may be larger than memory.

    Attributes
    ----------
    header
        The names of the columns.
    position, size
        The approximate number of bytes read so far, and the size of the file.
    """

    def __init__(self, path: Path) -> None:
        with reading(path):
            check_regular(path)
            self.path, self.position, self.size = path, 0, path.stat().st_size
        self._rows = self._parquet_rows if path.suffix.lower() == ".parquet" else self._csv_rows
        self.header = _header(path, next(self._rows(0), ("", []))[1])

    def check(self, columns: Sequence[str]) -> None:
        """Refuse names that are not columns of the table."""
        for column in columns:
            if column not in self.header:
                raise unknown(f"column of {self.path}:", column, self.header)

    def others(self, columns: Sequence[str]) -> list[str]:
        """Return the names of all other columns."""
        names = [name for name in self.header if name not in columns]
        if not names:
            excluded = " and ".join(repr(column) for column in columns)
            raise DataError(f"{self.path}: there are no feature columns besides {excluded}.")
        return names

    def batches(
        self, features: Sequence[str], label: str | None, group: str | None = None, size: int = 1000, skip: int = 0
    ) -> Iterator[Table]:
        """Yield the rows in batches of ``size``, without the first ``skip`` rows.

        Parameters
        ----------
        features
            The columns of numbers.
        label, group
            The columns of text to read, or ``None``.
        """
        index_of = {name: index for index, name in enumerate(self.header)}
        rows = self._rows(skip)
        next(rows)  # the header
        while block := list(islice(rows, size)):
            for location, cells in block:
                if len(cells) != len(self.header):
                    raise DataError(
                        f"{self.path}, {location}: {len(cells)} cells, but the header has {len(self.header)}."
                    )
            yield Table(
                tuple(features),
                self._numbers(block, [(index_of[name], name) for name in features]),
                () if label is None else self._texts(block, index_of[label], label),
                None if group is None else self._texts(block, index_of[group], group),
            )

    def _numbers(self, block: Sequence[Row], columns: Sequence[tuple[int, str]]) -> NDArray[np.float64]:
        try:
            numbers = np.array([[cells[index] for index, _ in columns] for _, cells in block], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            numbers = np.full((len(block), len(columns)), np.nan)
        if numbers.ndim == 2 and np.isfinite(numbers).all():  # a Parquet cell may be a list of numbers
            return numbers
        values = [
            [_parse_number(self.path, location, name, cells[index]) for index, name in columns]
            for location, cells in block
        ]
        return np.array(values, dtype=np.float64)

    def _texts(self, block: Sequence[Row], index: int, name: str) -> tuple[str, ...]:
        return tuple(_parse_text(self.path, location, name, cells[index]) for location, cells in block)

    def _csv_rows(self, skip: int) -> Iterator[Row]:
        try:
            with (
                self.path.open("rb") as raw,
                gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(b"\x1f\x8b") else raw as content,
                TextIOWrapper(content, encoding="utf-8-sig", newline="") as file,
            ):
                delimiter = max(",;\t", key=file.readline(MAX_LINE).count)
                file.seek(0)
                reader = csv.reader(iter(partial(file.readline, MAX_LINE), ""), delimiter=delimiter)
                rows = (cells for cells in reader if cells)
                for cells in islice(rows, 1):
                    yield "line 1", cells
                for cells in islice(rows, skip, None):
                    self.position = raw.tell()
                    yield f"line {reader.line_num}", cells
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{self.path}: cannot be read as a table of UTF-8 text ({error}).") from None

    def _parquet_rows(self, skip: int) -> Iterator[Row]:
        try:
            from pyarrow.parquet import ParquetFile
        except ImportError:
            raise DataError(
                f"{self.path}: pyarrow is needed to read it. Install it with: pip install 'gmed[parquet]'"
            ) from None
        try:
            with ParquetFile(self.path, buffer_size=2**20, pre_buffer=False) as file:
                yield "the schema", file.schema_arrow.names
                number, total = 0, max(1, file.metadata.num_rows)
                for group in range(file.num_row_groups):
                    length = file.metadata.row_group(group).num_rows
                    if number + length <= skip:
                        number += length
                        continue
                    for batch in file.iter_batches(batch_size=1000, row_groups=[group]):
                        self.position = self.size * number // total
                        for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                            number += 1
                            if number > skip:
                                yield f"row {number}", cells
        except (GmedError, GeneratorExit):
            raise
        except Exception as error:  # Arrow raises different errors for different damage
            raise DataError(f"{self.path}: not a valid Parquet file ({error}).") from None


def to_number(cell: Any) -> float:
    """Return the number that a cell holds, or ``nan`` if it holds none."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _header(path: Path, cells: Sequence[Any]) -> list[str]:
    names = [str(cell).strip() for cell in cells]
    if not names or not all(names) or len(set(names)) < len(names):
        raise DataError(f"{path}: the first line must give every column a different name.")
    if all(map(_is_number, names)):
        raise DataError(f"{path}: the first line must name the columns, but it contains numbers.")
    return names


def _parse_number(path: Path, location: str, column: str, cell: Any) -> float:
    if math.isfinite(number := to_number(cell)):
        return number
    if cell is None or str(cell).strip().lower() in ("", "nan", "na", "null", "none", "?"):
        problem = "a value is missing. Impute it or leave the row out"
    else:
        problem = f"{str(cell)[:40]!r} is not a finite number. Convert it, or leave the column out"
    raise DataError(f"{path}, {location}, column {column!r}: {problem}.")


def _parse_text(path: Path, location: str, column: str, cell: Any) -> str:
    if cell is None or cell != cell or not str(cell).strip():  # a Parquet cell may be NaN
        raise DataError(f"{path}, {location}, column {column!r}: a value is missing. Add it or leave the row out.")
    if isinstance(cell, (list, dict)):
        raise DataError(f"{path}, {location}, column {column!r}: {str(cell)[:40]!r} is not text or a number.")
    return str(cell).strip()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
