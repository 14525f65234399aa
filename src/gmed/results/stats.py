"""Comparisons as they are reported here: effect, interval, p and n, never a star alone."""

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
        Pairs.
    mixed
        How many of them are of runs on different devices or with different versions of torch. Those round differently,
        and in time learn differently: the pair shares its stream and its first weights, but not its chance.
    """

    mean: float
    low: Measure
    high: Measure
    p: Measure
    effect_size: Measure
    n: Count
    mixed: Count = 0


def paired_gain(better: Sequence[float], base: Sequence[float], confidence: float = 0.95) -> Gain:
    """The gain of ``better`` over ``base``, matched seed by seed.

    >>> gain = paired_gain([3.0, 5.0, 4.0], [2.0, 3.0, 3.0])
    >>> round(gain.mean, 4), round(gain.low, 4), round(gain.high, 4), round(gain.p, 4), gain.n
    (1.3333, -0.1009, 2.7676, 0.0286, 3)
    """
    differences = np.asarray(better, float) - np.asarray(base, float)
    n, mean = len(differences), float(differences.mean())
    spread = float(differences.std(ddof=1)) if n > 1 else math.nan
    if not spread > 1e-9 * abs(mean):  # one pair, or all pairs alike: nothing can be said of chance
        exact = mean if n > 1 else math.nan
        return Gain(mean, exact, exact, math.nan, math.nan, n)
    error = spread / math.sqrt(n)
    reach = float(scipy.special.stdtrit(n - 1, (1 + confidence) / 2)) * error
    return Gain(mean, mean - reach, mean + reach, float(scipy.special.stdtr(n - 1, -mean / error)), mean / spread, n)


def permutation_p(better: Sequence[float], base: Sequence[float]) -> float:
    """The same question as the t-test's without its assumptions: how often would pairs, each turned around or not by a
    fair coin, differ by as much on average? Exact up to 20 pairs, from 200,000 tosses beyond.

    >>> permutation_p([3.0, 5.0, 4.0], [2.0, 3.0, 3.0])
    0.125
    """
    differences = np.asarray(better, float) - np.asarray(base, float)
    n, rng = len(differences), np.random.default_rng(0)
    every_way = np.arange(2**n) if n <= MAX_EXACT_PAIRS else None
    sums = np.zeros(NUM_PERMUTATIONS if every_way is None else 2**n)
    for place, value in enumerate(differences):
        turned = rng.integers(0, 2, NUM_PERMUTATIONS) if every_way is None else every_way >> place & 1
        sums += np.where(turned, -value, value)
    as_much = sums >= differences.sum() - 1e-9 * np.abs(differences).sum()
    return float(np.mean(as_much)) if n <= MAX_EXACT_PAIRS else float((1 + as_much.sum()) / (1 + NUM_PERMUTATIONS))


MAX_EXACT_PAIRS, NUM_PERMUTATIONS = 20, 200_000
"""Up to so many pairs all ways of turning them around are counted; beyond, so many are drawn."""


def holm(ps: Sequence[float]) -> list[float]:
    """P-values of several tests, corrected (Holm 1979): the chance that any of them errs stays below the level.

    Undefined ones stay so and do not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found = sorted((p, place) for place, p in enumerate(ps) if not math.isnan(p))
    corrected, largest = [math.nan] * len(ps), 0.0
    for rank, (p, place) in enumerate(found):
        largest = max(largest, min(1.0, (len(found) - rank) * p))
        corrected[place] = round(largest, 12)
    return corrected


@dataclass(frozen=True)
class Difference:
    """How far our mean is from a published one.

    Attributes
    ----------
    mean
        Ours minus the published mean.
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
        return None if math.isnan(self.error) else abs(self.mean) <= 2 * self.error


def difference(ours: Sequence[float], mean: float, std: float | None, n: int) -> Difference:
    """Our runs against a published mean, standard deviation and number of runs; the latter two as far as given.

    >>> d = difference([80.0, 82.0, 81.0, 81.0], mean=82.0, std=2.0, n=20)
    >>> round(d.mean, 3), round(d.error, 3), d.within, round(d.low, 2), round(d.high, 2)
    (-1.0, 0.606, True, -2.32, 0.32)
    """
    values = np.asarray(ours, float)
    apart = float(values.mean()) - mean
    if len(values) < 2:
        return Difference(apart, math.nan, math.nan, math.nan)
    own = float(values.var(ddof=1)) / len(values)
    theirs = std**2 / n if std is not None and n > 1 else 0.0
    error = math.sqrt(own + theirs)
    freedom = own**2 / (len(values) - 1) + (theirs**2 / (n - 1) if theirs else 0.0)
    reach = float(scipy.special.stdtrit((own + theirs) ** 2 / freedom, 0.975)) * error if freedom else 0.0
    return Difference(apart, error, apart - reach, apart + reach)
