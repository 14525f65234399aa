from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files

from gmed.results import Published


def published(benchmark: str, method: str) -> Published | None:
    """What the paper reports for a method with its default settings on a benchmark.

    Some cells have two values in different tables; both are in ``published.csv``, and this is the first table's.

    >>> published("split-mnist", "er")
    Published(mean=81.07, std=2.5, n=20, table='Table 1')
    >>> published("split-mnist", "er(memory=50)") is None
    True
    """
    return _numbers().get((benchmark, method))


@lru_cache(maxsize=1)
def _numbers() -> dict[tuple[str, str], Published]:
    text = (files("gmed.paper") / "published.csv").read_text()
    found: dict[tuple[str, str], Published] = {}
    for row in csv.DictReader(text.splitlines()):
        number = Published(float(row["mean"]), float(row["std"]), int(row["n"]), row["table"])
        found.setdefault((row["benchmark"], row["method"]), number)
    return found
