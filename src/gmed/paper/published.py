"""The published numbers, each with its table in the paper."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from gmed.results import Published

PREVIOUS_BEST = "previous best"
"""A row of Table 1 that is not a method: the best published result without editing."""


@dataclass(frozen=True)
class Cell:
    """An accuracy in a table of the paper.

    Attributes
    ----------
    row
        Name of the row in the paper.
    benchmark, method
        Their names in this package.
    published
        The number with the paper's marks, whose meaning differs from table to table.
    """

    row: str
    benchmark: str
    method: str
    published: Published


@dataclass(frozen=True)
class Quantity:
    """A number of the paper other than an accuracy: a hyper-parameter, a time or a rate."""

    location: str
    row: str
    benchmark: str
    quantity: str
    value: float
    std: float | None
    n: int | None


def published(benchmark: str, method: str) -> Published | None:
    """Return what the paper reports for a method with its default settings on a benchmark.

    Some cells have two values in different tables; both are in ``published.csv``, and this is the first table's.

    >>> published("split-mnist", "er")
    Published(mean=81.07, std=2.5, n=20, table='Table 1', marks='')
    >>> published("split-mnist", "er(memory=50)") is None
    True
    """
    return _first_cells().get((benchmark, method))


def table(name: str) -> list[Cell]:
    """Return the cells of a table, in its order.

    >>> [(cell.method, cell.published.mean, cell.published.marks) for cell in table("Table 12")][:2]
    [('er', 86.61, ''), ('er+gmed', 88.48, '**')]
    """
    return [cell for cell in cells() if cell.published.table == name]


@lru_cache(maxsize=1)
def cells() -> tuple[Cell, ...]:
    """Return all accuracies of the paper's tables."""
    return tuple(
        Cell(
            row["row"],
            row["benchmark"],
            row["method"],
            Published(
                mean=float(row["mean"]),
                std=float(row["std"]) if row["std"] else None,
                n=int(row["n"] or 0),
                table=row["table"],
                marks=row["marks"],
            ),
        )
        for row in _read("published.csv")
    )


@lru_cache(maxsize=1)
def quantities() -> tuple[Quantity, ...]:
    """Return all other numbers.

    >>> [q.value for q in quantities() if q.quantity.startswith("cosine")]
    [0.523, 0.035]
    """
    return tuple(
        Quantity(
            row["where"],
            row["row"],
            row["benchmark"],
            row["quantity"],
            float(row["value"]),
            float(row["std"]) if row["std"] else None,
            int(row["n"]) if row["n"] else None,
        )
        for row in _read("quantities.csv")
    )


@lru_cache(maxsize=1)
def _first_cells() -> dict[tuple[str, str], Published]:
    return {(cell.benchmark, cell.method): cell.published for cell in reversed(cells())}


def _read(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((files("gmed.paper") / name).read_text(encoding="utf-8").splitlines()))
