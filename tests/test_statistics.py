import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gmed.results import difference, paired_gain


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
