from __future__ import annotations

import csv
from functools import lru_cache
from importlib.resources import files

from gmed.results import Published


def published(benchmark: str, method: str) -> Published | None:
    """What the paper reports for a method with its default settings on a benchmark.

    >>> published("split-mnist", "er")
    Published(mean=81.07, std=2.5, n=20, table='Table 1')
    >>> published("split-mnist", "er(memory=50)") is None
    True
    """
    return _numbers().get((benchmark, method))


@lru_cache(maxsize=1)
def _numbers() -> dict[tuple[str, str], Published]:
    text = (files("gmed.paper") / "published.csv").read_text()
    return {
        (row["benchmark"], row["method"]): Published(float(row["mean"]), float(row["std"]), int(row["n"]), row["table"])
        for row in csv.DictReader(text.splitlines())
    }
