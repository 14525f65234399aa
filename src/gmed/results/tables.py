"""A table of results: what its columns and cells say, whatever format it is written in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gmed.results.results import Row
from gmed.results.wording import apart, spread


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes
    ----------
    number
        Whether it holds numbers, which are aligned right and never broken.
    note
        What the heading means.
    code
        Whether it holds names of methods, as they are typed.
    """

    heading: str
    number: bool = False
    note: str = ""
    code: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes
    ----------
    text
        What is shown.
    value
        What the column is sorted by; ``nan`` is last either way.
    strong
        Whether it stands out.
    marks
        Marks of significance behind the text.
    note
        What is said of it besides, where there is room.
    color
        The color of the text, where there are colors.
    """

    text: str
    value: float | str = math.nan
    strong: bool = False
    marks: str = ""
    note: str = ""
    color: str = ""

    @property
    def missing(self) -> bool:
        """Whether nothing is known."""
        return self.text == "-"

    @property
    def key(self) -> float | str:
        """What the column is sorted by; empty where there is nothing."""
        return "" if isinstance(self.value, float) and math.isnan(self.value) else self.value


MISSING = Cell("-")


@dataclass(frozen=True)
class Table:
    """Rows under columns."""

    columns: Sequence[Column]
    title: str = ""
    name: str = ""
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell | str | int) -> None:
        """Add a row; text and whole numbers are cells that are sorted by themselves."""
        self.rows.append([cell if isinstance(cell, Cell) else Cell(str(cell), cell) for cell in cells])

    def without_empty_columns(self) -> Table:
        """Return the same but for columns in which nothing is known.

        >>> made = Table([Column("a"), Column("b")])
        >>> made.add(1, MISSING)
        >>> [column.heading for column in made.without_empty_columns().columns]
        ['a']
        """
        known = [i for i in range(len(self.columns)) if not all(row[i].missing for row in self.rows)]
        rows = [[row[i] for i in known] for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in known], rows=rows)


def texts(*headings: str) -> list[Column]:
    """Return columns of text."""
    return [Column(heading) for heading in headings]


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(heading, number=True) for heading in headings]


METHOD = Column("method", code=True)


def accuracy_cell(row: Row) -> Cell:
    """Return the mean of a method and its standard deviation."""
    return Cell(spread(row.mean, row.std), row.mean)


def published_cell(row: Row) -> Cell:
    """Return the published mean and standard deviation, with the table they stand in."""
    found = row.published
    return Cell(spread(found.mean, found.std), found.mean, note=found.table) if found else MISSING


def difference_cell(row: Row) -> Cell:
    """Return how far ours is from the published mean, with its standard error; a miss begins with ``!``."""
    if row.difference is None:
        return MISSING
    mark, note = ("! ", "more than two standard errors from the published mean") if row.missed else ("", "")
    return Cell(mark + apart(row.difference), row.difference.mean, note=note)
