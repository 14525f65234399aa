"""Comparisons as they are reported here: effect, interval, p and n, never a star alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


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
    """

    mean: float
    low: float
    high: float
    p: float
    effect_size: float
    n: int


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
    reach = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error
    return Gain(mean, mean - reach, mean + reach, float(stats.t.sf(mean / error, n - 1)), mean / spread, n)


@dataclass(frozen=True)
class Difference:
    """How far our mean is from a published one.

    Attributes
    ----------
    mean
        Ours minus the published mean.
    error
        Standard error of that difference, from both standard deviations and numbers of runs.
    within
        Whether it lies within two standard errors; ``None`` where there is no standard error (one run).
    """

    mean: float
    error: float

    @property
    def within(self) -> bool | None:
        return None if math.isnan(self.error) else abs(self.mean) <= 2 * self.error


def difference(ours: Sequence[float], mean: float, std: float | None, n: int) -> Difference:
    """Our runs against a published mean, standard deviation and number of runs.

    >>> d = difference([80.0, 82.0, 81.0, 81.0], mean=82.0, std=2.0, n=20)
    >>> round(d.mean, 3), round(d.error, 3), d.within
    (-1.0, 0.606, True)
    """
    values = np.asarray(ours, float)
    own = float(values.var(ddof=1)) / len(values) if len(values) > 1 else math.nan
    return Difference(float(values.mean()) - mean, math.sqrt(own + (std or 0.0) ** 2 / n))
