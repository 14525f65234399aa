"""Metrics of a run: from its matrix of accuracies, during training, and its cost.

``accuracy[i][j]`` is the accuracy on task j at the i-th point of evaluation; points of evaluation are the ends of
tasks. Definitions and citations are in ``docs/results.md``. Accuracies are in 0 .. 1. A metric that needs several
points of evaluation is undefined (``nan``) where there is only one, and so is a metric that was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gmed.engine import RunResult
from gmed.io.records import Measure

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Metrics:
    """All metrics of one run, as docs/results.md defines them."""

    final: Measure
    pooled: Measure
    forgetting: Measure
    backward_transfer: Measure
    forward_transfer: Measure
    anytime: Measure
    worst_case: Measure
    prequential: Measure
    forward_passes: Measure
    backward_passes: Measure
    seconds: Measure
    overhead: Measure = math.nan
    overhead_mb: Measure = math.nan

    @classmethod
    def of(cls, run: RunResult) -> Metrics:
        return cls(
            final=run.final_accuracy,
            pooled=run.pooled_accuracy,
            forgetting=forgetting(run.accuracy),
            backward_transfer=backward_transfer(run.accuracy),
            forward_transfer=math.nan if run.untrained is None else forward_transfer(run.accuracy, run.untrained),
            anytime=anytime(run.accuracy),
            worst_case=worst_case(run.accuracy),
            prequential=math.nan if run.prequential is None else run.prequential,
            forward_passes=math.nan if run.passes is None else run.passes["forward"],
            backward_passes=math.nan if run.passes is None else run.passes["backward"],
            seconds=run.timings.get("train", math.nan),
            overhead=math.nan if run.overhead is None else run.overhead["examples"],
            overhead_mb=math.nan if run.overhead is None else run.overhead["bytes"] / 1e6,
        )


def forgetting(accuracy: Matrix) -> float:
    """Return how far accuracy on each earlier task has fallen from its best, on average.

    >>> round(forgetting([[0.9, 0.1, 0.1], [0.6, 0.8, 0.1], [0.5, 0.9, 0.7]]), 4)  # 0.9 - 0.5 and 0.8 - 0.9
    0.15
    """
    matrix = _square(accuracy)
    if matrix is None:
        return math.nan
    best = np.array([matrix[task:-1, task].max() for task in range(len(matrix) - 1)])
    return float(np.mean(best - matrix[-1, :-1]))


def backward_transfer(accuracy: Matrix) -> float:
    """Return the change of accuracy on each earlier task since it was learned, on average.

    >>> round(backward_transfer([[0.9, 0.1, 0.1], [0.6, 0.8, 0.1], [0.5, 0.9, 0.7]]), 4)  # 0.5 - 0.9 and 0.9 - 0.8
    -0.15
    """
    matrix = _square(accuracy)
    return math.nan if matrix is None else float(np.mean((matrix[-1] - np.diagonal(matrix))[:-1]))


def forward_transfer(accuracy: Matrix, untrained: Sequence[float]) -> float:
    """Return the accuracy on each later task just before it is learned, above the untrained model's, on average.

    >>> accuracy = [[0.9, 0.3, 0.1], [0.6, 0.8, 0.4], [0.5, 0.9, 0.7]]
    >>> round(forward_transfer(accuracy, untrained=[0.1, 0.1, 0.2]), 4)  # 0.3 - 0.1 and 0.4 - 0.2
    0.2
    """
    matrix = _square(accuracy)
    return math.nan if matrix is None else float(np.mean(np.diagonal(matrix, 1) - np.asarray(untrained)[1:]))


def anytime(accuracy: Matrix) -> float:
    """Return the accuracy on the tasks seen so far, averaged over the points of evaluation: the area under the curve.

    >>> round(anytime([[0.9, 0.1], [0.6, 0.8]]), 4)  # 0.9, then 0.7
    0.8
    """
    matrix = _square(accuracy)
    if matrix is None:
        return math.nan
    return float(np.mean([matrix[point, : point + 1].mean() for point in range(len(matrix))]))


def worst_case(accuracy: Matrix) -> float:
    """Return the mean over tasks of the lowest accuracy since each was learned; for the last task, the final one.

    >>> round(worst_case([[0.9, 0.1, 0.1], [0.3, 0.8, 0.1], [0.5, 0.9, 0.7]]), 4)  # 0.3, 0.9 and 0.7
    0.6333
    """
    matrix = _square(accuracy)
    if matrix is None:
        return math.nan
    lowest = [matrix[task + 1 :, task].min() for task in range(len(matrix) - 1)]
    return float(np.mean([*lowest, matrix[-1, -1]]))


def _square(accuracy: Matrix) -> np.ndarray | None:
    """Return the matrix, or ``None`` unless there is a point of evaluation after each of several tasks."""
    matrix = np.asarray(accuracy, float)
    return matrix if len(matrix) > 1 and matrix.shape[0] == matrix.shape[1] else None
