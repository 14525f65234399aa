"""Statistics against scipy and their definitions."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gmed.results import difference, paired_gain
from gmed.results.stats import holm, permutation_p


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=30))
def test_paired_gain_equals_scipy(pairs):
    a, b = np.array(pairs).T
    if np.ptp(a - b) < 1e-6 * max(1, np.abs(a - b).max()):
        return
    gain = paired_gain(a, b)
    test = stats.ttest_rel(a, b, alternative="greater")
    assert gain.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
    interval = stats.ttest_rel(a, b).confidence_interval()
    assert (gain.low, gain.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    assert gain.effect_size * math.sqrt(gain.n) == pytest.approx(test.statistic, rel=1e-6)


def test_degenerate_pairs():
    one = paired_gain([2.0], [1.0])
    assert (one.mean, one.n) == (1.0, 1)
    assert math.isnan(one.p)
    assert math.isnan(one.low)
    alike = paired_gain([2.0, 3.0], [1.0, 2.0])
    assert (alike.low, alike.high) == (1.0, 1.0)
    assert math.isnan(alike.p)


def test_difference_from_published():
    apart = difference([1.0, 3.0], mean=0.0, std=2.0, n=4)
    assert apart.mean == 2.0
    assert apart.error == pytest.approx(math.sqrt(2 / 2 + 4 / 4))
    assert apart.within
    assert difference([1.0], mean=0.0, std=2.0, n=4).within is None
    assert not difference([10.0, 10.1], mean=0.0, std=2.0, n=4).within


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_permutation_test_enumerates_all_sign_flips(n):
    rng = np.random.default_rng(n)
    better, base = rng.normal(0.5, 1, n), rng.normal(0, 1, n)
    apart = better - base
    ways = [np.dot(signs, apart) for signs in product([1, -1], repeat=n)]
    assert permutation_p(better, base) == pytest.approx(np.mean([way >= apart.sum() - 1e-9 for way in ways]))


def test_the_permutation_test_agrees_with_the_t_test_on_normal_differences():
    rng = np.random.default_rng(0)
    for n in (15, 40, 100):
        better, base = rng.normal(0.4, 1, n), rng.normal(0, 1, n)
        assert permutation_p(better, base) == pytest.approx(paired_gain(better, base).p, abs=0.03)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_correction_equals_its_definition(ps):
    """A hypothesis is rejected at a level if it and all with smaller p pass p <= level / how many are left."""
    corrected = holm(ps)
    for level in (0.001, 0.01, 0.05, 0.2):
        rejected, left = set(), len(ps)
        for p, place in sorted((p, place) for place, p in enumerate(ps)):
            if p * left > level:
                break
            rejected.add(place)
            left -= 1
        assert {place for place, p in enumerate(corrected) if p <= level - 1e-11} <= rejected
        assert rejected <= {place for place, p in enumerate(corrected) if p <= level + 1e-11}


def test_interval_of_a_difference_equals_welch():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(80, 3, 12), rng.normal(81, 1, 20)
    found = difference(ours, theirs.mean(), theirs.std(ddof=1), 20)
    reference = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
