"""What every part gains over the same method without it, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gmed.report.runs import shuffles
from gmed.results import Gain, Results, Row
from gmed.results.statistics import holm

LEVELS = (0.05, 0.01, 0.001)
"""Corrected p-values below which a gain is marked, a star for each."""


@dataclass(frozen=True)
class Comparison:
    """A method beside the same without the part that is named last: an edit, or a memory or retrieval of one's own.

    Attributes
    ----------
    differences
        By seed, in percentage points.
    gain
        Their mean, interval and test.
    corrected
        The p-value after Holm's correction for all comparisons of the report.
    """

    benchmark: str
    method: str
    base: str
    differences: dict[int, float]
    gain: Gain
    corrected: float

    @property
    def marks(self) -> str:
        """A star for every level that the corrected p-value is below."""
        return "*" * sum(self.corrected < level for level in LEVELS)

    @property
    def name(self) -> str:
        """What is compared."""
        return f"{self.method} − {self.base}"


def comparisons(results: Results, rows: Sequence[Row]) -> list[Comparison]:
    """Every method with a further part beside its base, where both have runs at the same seeds."""
    found = []
    for row in rows:
        if row.gain is not None and row.gain_over is not None:
            ours = results.accuracies(row.benchmark, row.method)
            base = results.accuracies(row.benchmark, row.gain_over)
            apart = {seed: 100 * (ours[seed] - base[seed]) for seed in sorted(ours.keys() & base.keys())}
            found.append((row.benchmark, row.method, row.gain_over, apart, row.gain))
    corrected = holm([gain.p for *_, gain in found])
    return [Comparison(*one, p) for one, p in zip(found, corrected, strict=True)]


def levels_in_words() -> str:
    """What the stars mean.

    >>> levels_in_words()
    '* p < 0.05, ** p < 0.01, *** p < 0.001'
    """
    return ", ".join(f"{'*' * (place + 1)} p < {level:g}" for place, level in enumerate(LEVELS))


def correction_in_words(compared: Sequence[Comparison]) -> str:
    """How p-values are corrected.

    >>> correction_in_words([])
    'Holm-corrected for 0 comparisons'
    """
    return f"Holm-corrected for {len(compared)} comparison{'' if len(compared) == 1 else 's'}"


def best_methods(rows: Sequence[Row]) -> dict[str, list[str]]:
    """On each benchmark the method with the highest mean, or all that tie, of those that meet the stream as it comes.

    Methods that shuffle it (``iid-online``, ``iid-offline``) are bounds, not rivals.

    >>> row = lambda method, mean: Row("split-mnist", method, 1, mean, 0.0, None, None, None, None)
    >>> best_methods([row("er", 80.0), row("mir", 79.0), row("er+gmed", 80.0), row("iid-online", 90.0)])
    {'split-mnist': ['er', 'er+gmed']}
    """
    rivals: dict[str, list[Row]] = {}
    for row in rows:
        if not shuffles(row.method):
            rivals.setdefault(row.benchmark, []).append(row)
    highest = {benchmark: max(row.mean for row in found) for benchmark, found in rivals.items()}
    return {
        benchmark: [row.method for row in found if math.isclose(row.mean, highest[benchmark])]
        for benchmark, found in rivals.items()
    }
