"""Statistics of comparisons, reported as effect, confidence interval, p-value and n, never as a star alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from gmed.io.records import Count, Measure


@dataclass(frozen=True)
class Gain:
    """How much better one method is than another at the same seeds.

    Attributes
    ----------
    mean
        Mean of the paired differences.
    low, high
        Its 95 % confidence interval (Student's t).
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

    It is the probability that the mean difference is as large when the sign of each pair is flipped at random: exact up
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
        Its 95 % confidence interval (Welch's t).
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
