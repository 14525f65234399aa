"""What every edit gains over the same method without it, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gmed.results import Gain, Results, Row
from gmed.results.statistics import holm

LEVELS = (0.05, 0.01, 0.001)
"""Corrected p-values below which a gain is marked, a star for each."""


@dataclass(frozen=True)
class Comparison:
    """A method with an edit beside the same without.

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
    """Every edit beside its base, where both have runs at the same seeds."""
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


def best_methods(rows: Sequence[Row]) -> dict[str, str]:
    """On each benchmark the method with the highest mean, of those that meet the stream as it comes.

    Methods that shuffle it (``iid-online``, ``iid-offline``) are bounds, not rivals.
    """
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        if not row.method.startswith("iid"):
            best[row.benchmark] = max(best.get(row.benchmark, (-1.0, "")), (row.mean, row.method))
    return {benchmark: method for benchmark, (_, method) in best.items()}
