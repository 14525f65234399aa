"""Comparisons of methods at the same seeds, tested one by one and corrected together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gmed.results.results import Results, finite
from gmed.results.stats import Gain, holm, permutation_p

SHOWN = (
    *("benchmark", "method", "rival", "gain", "permutation", "corrected", "marks"),
    *("published_gain", "published_marks", "published_p", "chosen"),
)
"""What a document holds of a comparison."""


@dataclass(frozen=True)
class Comparison:
    """One method against another at the same seeds.

    Attributes
    ----------
    differences
        By seed, in percentage points.
    gain
        Their mean with its interval and the paired t-test.
    corrected
        The p-value of that test, corrected for all comparisons of the family (Holm).
    marks
        An asterisk for every level of the family that its p-value, corrected or not, is below.
    published_gain, published_marks
        The difference of the means that the paper reports for both in one table, and its marks; ``None`` where it
        makes no such comparison.
    published_p
        Its p-value, where the table prints it.
    chosen
        Of the best edited method against the best that is not edited, by whose means they are the best.
    """

    benchmark: str
    method: str
    rival: str
    differences: dict[int, float]
    gain: Gain
    corrected: float
    marks: str = ""
    published_gain: float | None = None
    published_marks: str | None = None
    published_p: float | None = None
    chosen: str = ""

    @property
    def name(self) -> str:
        """What is compared."""
        return f"{self.method} − {self.rival}"

    @cached_property
    def permutation(self) -> float:
        """The p-value of the permutation test of the same question, computed when it is first asked for."""
        return permutation_p(list(self.differences.values()), [0.0] * len(self.differences))

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can carry it, without the seeds."""
        return {name: finite(asdict(self.gain) if name == "gain" else getattr(self, name)) for name in SHOWN}


def compare(
    results: Results, pairs: Iterable[tuple[str, str, str]], levels: Sequence[float], *, mark_corrected: bool = False
) -> list[Comparison]:
    """Return a family of comparisons: each pair that has runs at common seeds, corrected for their number.

    Parameters
    ----------
    pairs
        A benchmark, a method and its rival, each.
    levels
        P-values below which a gain is marked, an asterisk for each.
    mark_corrected
        Whether the corrected p-values are marked, rather than those of the single tests.
    """
    run = {(one.benchmark, one.method) for one in results.runs}
    found = [
        (benchmark, method, rival, results.differences(benchmark, method, rival), gain)
        for benchmark, method, rival in pairs
        if {(benchmark, method), (benchmark, rival)} <= run
        and (gain := results.gain(benchmark, method, rival)) is not None
    ]
    corrected = holm([gain.p for *_, gain in found])
    return [
        Comparison(*one, p, marks="*" * sum((p if mark_corrected else one[-1].p) < level for level in levels))
        for one, p in zip(found, corrected, strict=True)
    ]


def describe_levels(levels: Sequence[float]) -> str:
    """Return what the marks mean.

    >>> describe_levels([0.05, 0.01])
    '* p < 0.05, ** p < 0.01'
    """
    return ", ".join(f"{'*' * number} p < {level:g}" for number, level in enumerate(levels, 1))
