"""Continual learning metrics against their definitions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gmed.engine import ExecutionConfig, RunResult, RunSpec, run_one
from gmed.engine.runner import make_learner, make_stream
from gmed.results.metrics import Metrics, anytime, backward_transfer, forgetting, forward_transfer, worst_case

SQUARES = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.lists(st.floats(0, 1), min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(SQUARES)
def test_metrics_equal_their_definitions(accuracy):
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
def test_metrics_satisfy_their_inequalities(accuracy):
    """Nothing is forgotten less than it has fallen, and the worst is no better than the end."""
    assert forgetting(accuracy) >= -backward_transfer(accuracy) - 1e-12
    assert worst_case(accuracy) <= np.mean(accuracy[-1]) + 1e-12


def test_single_evaluation_has_metrics_without_history():
    found = Metrics.of(RunResult("split-mnist", "iid-online", 0, [[0.5, 0.7]], 0.6, 0.61, 10, {}, {}))
    assert (found.final, found.pooled) == (0.6, 0.61)
    assert all(math.isnan(v) for v in (found.forgetting, found.backward_transfer, found.anytime, found.worst_case))
    assert math.isnan(forward_transfer([[0.5, 0.7]], [0.1, 0.1]))


@given(SQUARES.flatmap(lambda m: st.tuples(st.just(m), st.lists(st.floats(0, 1), min_size=len(m), max_size=len(m)))))
def test_forward_transfer_by_its_definition(found):
    accuracy, untrained = found
    gained = [accuracy[j - 1][j] - untrained[j] for j in range(1, len(accuracy))]
    assert forward_transfer(accuracy, untrained) == pytest.approx(sum(gained) / len(gained), abs=1e-12)


def test_optional_measurements():
    matrix, timings = [[0.9, 0.3], [0.6, 0.8]], {"data": 1.0, "train": 2.5, "evaluate": 1.0}
    older = RunResult("split-mnist", "er", 0, matrix, 0.7, 0.7, 10, timings, {})
    run = replace(older, untrained=[0.5, 0.1], passes={"forward": 2.0, "backward": 1.5}, prequential=0.4)
    found = Metrics.of(run)
    assert found.forward_transfer == pytest.approx(0.2)
    assert (found.prequential, found.forward_passes, found.backward_passes, found.seconds) == (0.4, 2.0, 1.5, 2.5)
    lacking = Metrics.of(older)
    assert lacking.seconds == 2.5
    names = "forward_transfer", "prequential", "forward_passes", "backward_passes"
    assert all(math.isnan(getattr(lacking, name)) for name in names)


def test_untrained_accuracy_is_measured_before_learning():
    spec = RunSpec.make("split-mnist", "finetune", 2)
    learner, flow = make_learner(spec, torch.device("cpu")), make_stream(spec, torch.device("cpu"))
    right = [(learner.predict(test.x.float() / 255) == test.y).double().mean().item() for test in flow.tests]
    assert run_one(spec, ExecutionConfig("cpu")).untrained == pytest.approx(right)
