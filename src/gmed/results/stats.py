"""Statistics of comparisons, reported as effect, confidence interval, p-value and n, never as a star alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from gmed.io.records import Count, Measure

if TYPE_CHECKING:
    from gmed.results.results import Results


@dataclass(frozen=True)
class Gain:
    """How much better one method is than another at the same seeds.

    Attributes
    ----------
    mean
        Mean of the paired differences.
    low, high
        Its 95% confidence interval (Student's t).
    p
        One-tailed paired t-test of "no better", as in the paper; ``nan`` where it is undefined.
    effect_size
        Mean difference over its standard deviation (Cohen's d for pairs).
    n
        Number of pairs.
    mixed
        Number of pairs from different devices or versions of torch. These round differently, so that their training
        diverges in time: such a pair shares its stream and initial weights, but not all of its randomness.
    """

    mean: float
    low: Measure
    high: Measure
    p: Measure
    effect_size: Measure
    n: Count
    mixed: Count = 0


def paired_gain(better: Sequence[float], base: Sequence[float], confidence: float = 0.95) -> Gain:
    """Return the gain of ``better`` over ``base``, paired by seed.

    >>> gain = paired_gain([3.0, 5.0, 4.0], [2.0, 3.0, 3.0])
    >>> round(gain.mean, 4), round(gain.low, 4), round(gain.high, 4), round(gain.p, 4), gain.n
    (1.3333, -0.1009, 2.7676, 0.0286, 3)
    """
    differences = np.asarray(better, float) - np.asarray(base, float)
    n, mean = len(differences), float(differences.mean())
    spread = float(differences.std(ddof=1)) if n > 1 else math.nan
    if not spread > 1e-9 * abs(mean):  # one pair, or equal differences: no test is possible
        bound = mean if n > 1 else math.nan
        return Gain(mean, bound, bound, math.nan, math.nan, n)
    error = spread / math.sqrt(n)
    margin = float(scipy.special.stdtrit(n - 1, (1 + confidence) / 2)) * error
    return Gain(mean, mean - margin, mean + margin, float(scipy.special.stdtr(n - 1, -mean / error)), mean / spread, n)


def permutation_p(better: Sequence[float], base: Sequence[float]) -> float:
    """Return the p-value of the one-tailed permutation test, which does not assume a normal distribution.

    It is the probability of a mean difference at least as large if the sign of each pair is flipped at random: exact up
    to 20 pairs, estimated from 200,000 random sign vectors beyond.

    >>> permutation_p([3.0, 5.0, 4.0], [2.0, 3.0, 3.0])
    0.125
    """
    differences = np.asarray(better, float) - np.asarray(base, float)
    n, rng = len(differences), np.random.default_rng(0)
    patterns = np.arange(2**n) if n <= MAX_EXACT_PAIRS else None
    sums = np.zeros(NUM_PERMUTATIONS if patterns is None else 2**n)
    for index, value in enumerate(differences):
        flipped = rng.integers(0, 2, NUM_PERMUTATIONS) if patterns is None else patterns >> index & 1
        sums += np.where(flipped, -value, value)
    as_large = sums >= differences.sum() - 1e-9 * np.abs(differences).sum()
    return float(np.mean(as_large)) if n <= MAX_EXACT_PAIRS else float((1 + as_large.sum()) / (1 + NUM_PERMUTATIONS))


MAX_EXACT_PAIRS, NUM_PERMUTATIONS = 20, 200_000
"""Number of pairs up to which all sign vectors are enumerated, and number drawn for more pairs."""


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p-values of several tests corrected by Holm (1979), which bounds the family-wise error rate.

    Undefined p-values stay undefined and do not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    ordered = sorted((p, index) for index, p in enumerate(ps) if not math.isnan(p))
    corrected, largest = [math.nan] * len(ps), 0.0
    for rank, (p, index) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p))
        corrected[index] = round(largest, 12)
    return corrected


@dataclass(frozen=True)
class Difference:
    """The difference of a measured mean and a published one.

    Attributes
    ----------
    mean
        The measured mean minus the published one.
    error
        Standard error of that difference, from both standard deviations and numbers of runs.
    low, high
        Its 95% confidence interval (Welch's t).
    within
        Whether it lies within two standard errors; ``None`` where there is no standard error (one run).
    """

    mean: float
    error: Measure
    low: Measure
    high: Measure

    @property
    def within(self) -> bool | None:
        """Whether the difference is within two standard errors."""
        return None if math.isnan(self.error) else abs(self.mean) <= 2 * self.error


def difference(measured: Sequence[float], mean: float, std: float | None, n: int) -> Difference:
    """Return the difference from a published mean, given its standard deviation and number of runs if known.

    >>> d = difference([80.0, 82.0, 81.0, 81.0], mean=82.0, std=2.0, n=20)
    >>> round(d.mean, 3), round(d.error, 3), d.within, round(d.low, 2), round(d.high, 2)
    (-1.0, 0.606, True, -2.32, 0.32)
    """
    values = np.asarray(measured, float)
    gap = float(values.mean()) - mean
    if len(values) < 2:
        return Difference(gap, math.nan, math.nan, math.nan)
    variance = float(values.var(ddof=1)) / len(values)
    published_variance = std**2 / n if std is not None and n > 1 else 0.0
    error = math.sqrt(variance + published_variance)
    freedom = variance**2 / (len(values) - 1) + (published_variance**2 / (n - 1) if published_variance else 0.0)
    margin = (
        float(scipy.special.stdtrit((variance + published_variance) ** 2 / freedom, 0.975)) * error if freedom else 0.0
    )
    return Difference(gap, error, gap - margin, gap + margin)


def nan_to_none(value: Any) -> Any:
    """Return a value for JSON, in which NaN and infinity become ``None``."""
    if isinstance(value, dict):
        return {k: nan_to_none(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        An asterisk for every level of significance above its p-value, corrected or not.
    published_gain, published_marks
        The difference of the two means that the paper reports in one table, and its marks; ``None`` if the paper makes
        no such comparison.
    published_p
        Its p-value, if the table gives it.
    selected_by
        In a comparison of the best edited method with the best unedited one: the means by which they were selected.
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
        return permutation_p(list(self.differences.values()), [0.0] * len(self.differences))

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
