import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmed.engine import RunResult
from gmed.results.metrics import Metrics, anytime, backward_transfer, forgetting, worst_case

SQUARES = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(SQUARES)
def test_by_their_definitions(accuracy):
    n = len(accuracy)
    lost = [max(accuracy[i][j] for i in range(j, n - 1)) - accuracy[n - 1][j] for j in range(n - 1)]
    moved = [accuracy[n - 1][j] - accuracy[j][j] for j in range(n - 1)]
    so_far = [sum(accuracy[i][: i + 1]) / (i + 1) for i in range(n)]
    lowest = [min(accuracy[i][j] for i in range(j + 1, n)) for j in range(n - 1)] + [accuracy[n - 1][n - 1]]
    assert forgetting(accuracy) == pytest.approx(sum(lost) / (n - 1), abs=1e-12)
    assert backward_transfer(accuracy) == pytest.approx(sum(moved) / (n - 1), abs=1e-12)
    assert anytime(accuracy) == pytest.approx(sum(so_far) / n, abs=1e-12)
    assert worst_case(accuracy) == pytest.approx(sum(lowest) / n, abs=1e-12)


@given(SQUARES)
def test_how_they_relate(accuracy):
    """Nothing is forgotten less than it has fallen, and the worst is no better than the end."""
    assert forgetting(accuracy) >= -backward_transfer(accuracy) - 1e-12
    assert worst_case(accuracy) <= np.mean(accuracy[-1]) + 1e-12


def test_one_point_of_evaluation_has_what_needs_no_history():
    found = Metrics.of(RunResult("split-mnist", "iid-online", 0, [[0.5, 0.7]], 0.6, 0.61, 10, {}, {}))
    assert (found.final, found.pooled) == (0.6, 0.61)
    assert all(math.isnan(v) for v in (found.forgetting, found.backward_transfer, found.anytime, found.worst_case))
