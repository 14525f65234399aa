"""The gain of every method over its baseline, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gmed.report.grouping import is_iid_baseline
from gmed.results import Results, Row
from gmed.results.stats import Comparison, compare

LEVELS = (0.05, 0.01, 0.001)
"""Corrected p-values below which a gain is marked, one star for each."""


def comparisons(results: Results, rows: Sequence[Row]) -> list[Comparison]:
    """Return the comparison of every method with its baseline, where both have runs at the same seeds."""
    pairs = [(row.benchmark, row.method, row.gain_over) for row in rows if row.gain_over is not None]
    return compare(results, pairs, LEVELS, mark_corrected=True)


def describe_correction(compared: Sequence[Comparison]) -> str:
    """Return how p-values are corrected.

    >>> describe_correction([])
    'Holm-corrected for 0 comparisons'
    """
    return f"Holm-corrected for {len(compared)} comparison{'' if len(compared) == 1 else 's'}"


def best_methods(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return on each benchmark the online method with the highest mean, or all that tie.

    Methods that shuffle the stream (``iid-online``, ``iid-offline``) are upper bounds and do not count.

    >>> row = lambda method, mean: Row("split-mnist", method, 1, mean, 0.0, None, None, None, None)
    >>> best_methods([row("er", 80.0), row("mir", 79.0), row("er+gmed", 80.0), row("iid-online", 90.0)])
    {'split-mnist': ['er', 'er+gmed']}
    """
    candidates: dict[str, list[Row]] = {}
    for row in rows:
        if not is_iid_baseline(row.method):
            candidates.setdefault(row.benchmark, []).append(row)
    highest = {benchmark: max(row.mean for row in benchmark_rows) for benchmark, benchmark_rows in candidates.items()}
    return {
        benchmark: [row.method for row in benchmark_rows if math.isclose(row.mean, highest[benchmark])]
        for benchmark, benchmark_rows in candidates.items()
    }
