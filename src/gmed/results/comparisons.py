"""Comparisons of methods at the same seeds, tested one by one and corrected together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gmed.results.results import Results, nan_to_none
from gmed.results.stats import Gain, holm
from gmed.results.stats import permutation_p as permutation_p_value

DOCUMENT_FIELDS = {
    "benchmark": "benchmark",
    "method": "method",
    "rival": "baseline",
    "gain": "gain",
    "permutation": "permutation_p",
    "corrected": "corrected_p",
    "marks": "marks",
    "published_gain": "published_gain",
    "published_marks": "published_marks",
    "published_p": "published_p",
    "chosen": "selected_by",
}
"""The attributes of a comparison by their names in a JSON document."""


@dataclass(frozen=True)
class Comparison:
    """One method against another at the same seeds.

    Attributes
    ----------
    differences
        By seed, in percentage points.
    gain
        Their mean with its interval and the paired t-test.
    corrected_p
        The p-value of that test, corrected for all comparisons of the family (Holm).
    marks
        An asterisk for every level of significance that its p-value, corrected or not, is below.
    published_gain, published_marks
        The difference of the means that the paper reports for both in one table, and its marks; ``None`` where the
        paper makes no such comparison.
    published_p
        Its p-value, where the table prints it.
    selected_by
        In a comparison of the best edited method with the best unedited one: by whose means they are the best.
    """

    benchmark: str
    method: str
    baseline: str
    differences: dict[int, float]
    gain: Gain
    corrected_p: float
    marks: str = ""
    published_gain: float | None = None
    published_marks: str | None = None
    published_p: float | None = None
    selected_by: str = ""

    @property
    def name(self) -> str:
        """The two methods, as a difference."""
        return f"{self.method} − {self.baseline}"

    @cached_property
    def permutation_p(self) -> float:
        """The p-value of the permutation test of the same hypothesis, computed on first use."""
        return permutation_p_value(list(self.differences.values()), [0.0] * len(self.differences))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-compatible data, without the differences by seed."""
        return {
            name: nan_to_none(asdict(self.gain) if name == "gain" else getattr(self, attribute))
            for name, attribute in DOCUMENT_FIELDS.items()
        }


def compare(
    results: Results, pairs: Iterable[tuple[str, str, str]], levels: Sequence[float], *, mark_corrected: bool = False
) -> list[Comparison]:
    """Return the comparison of each pair that has runs at common seeds, corrected for their number.

    Parameters
    ----------
    pairs
        Triples of a benchmark, a method and its baseline.
    levels
        P-values below which a gain is marked, an asterisk for each.
    mark_corrected
        Whether the marks follow the corrected p-values rather than those of the single tests.
    """
    available = {(run.benchmark, run.method) for run in results.runs}
    compared = [
        (benchmark, method, baseline, results.differences(benchmark, method, baseline), gain)
        for benchmark, method, baseline in pairs
        if {(benchmark, method), (benchmark, baseline)} <= available
        and (gain := results.gain(benchmark, method, baseline)) is not None
    ]
    corrected = holm([gain.p for *_, gain in compared])
    return [
        Comparison(*fields, p, marks="*" * sum((p if mark_corrected else fields[-1].p) < level for level in levels))
        for fields, p in zip(compared, corrected, strict=True)
    ]


def describe_levels(levels: Sequence[float]) -> str:
    """Return a legend of the marks.

    >>> describe_levels([0.05, 0.01])
    '* p < 0.05, ** p < 0.01'
    """
    return ", ".join(f"{'*' * number} p < {level:g}" for number, level in enumerate(levels, 1))
