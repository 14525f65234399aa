"""Heat maps of accuracy on every task after every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record, heat_map
from gmed.report.charts.chart import GROUND, Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, first_choice
from gmed.results.stats import Comparison

Matrix = NDArray[np.float64]

MAX_CHOICES = 10
"""Number of tasks up to which cells have room for numbers."""


def task_matrices(runs: Sequence[RunResult], anchor: str) -> Chart | None:
    """Return the chart of accuracy on every task after every task, by method."""
    means = mean_matrices(runs)
    if not means:
        return None
    import altair as alt

    defaults = [method for method in first_choice(runs) if method in means]
    return Chart(
        f"{anchor}-tasks",
        "Accuracy by task",
        "Mean accuracy over seeds on every task (columns) at the end of every task (rows): a column fades where a task "
        "is forgotten.",
        _matrix_chart(
            alt.Scale(scheme="viridis", domain=[0, 100]), "accuracy, %", _num_tasks(means), ".0f", "datum.value < 60"
        ),
        records_of(means),
        Choice("method", list(means), [next(iter(defaults or means))]),
    )


def task_differences(runs: Sequence[RunResult], compared: Sequence[Comparison], anchor: str) -> Chart | None:
    """Return the chart of the difference of each method and its baseline, by task."""
    means = mean_matrices(runs)
    differences = {
        c.name: means[c.method] - means[c.baseline] for c in compared if c.method in means and c.baseline in means
    }
    if not differences:
        return None
    import altair as alt

    limit = max(1.0, float(max(np.abs(matrix).max() for matrix in differences.values())))
    return Chart(
        f"{anchor}-task-differences",
        "Gains by task",
        "Mean accuracy of the first method minus the second, on every task at the end of every task: blue higher, "
        "red lower.",
        _matrix_chart(
            alt.Scale(scheme="redblue", domain=[-limit, limit], domainMid=0),
            "difference, points",
            _num_tasks(differences),
            "+.1f",
            f"abs(datum.value) > {0.7 * limit}",
        ),
        records_of(differences),
        Choice(
            "method",
            list(differences),
            [next((c.name for c in compared if c.method in first_choice(runs)), next(iter(differences)))],
        ),
    )


def _matrix_chart(scale: Any, title: str, tasks: int, number: str, white: str) -> Any:
    """Return a heat map of tasks by tasks; with few tasks, the cells have room for numbers."""
    fields = [("method:N", "method"), ("after:O", "after task"), ("task:O", "on task"), ("value:Q", title)]
    chart = heat_map(
        rows(),
        ("task", "on task"),
        ("after", "after task"),
        ("value", title),
        scale,
        number=number if tasks <= MAX_CHOICES else "",
        white=white,
        gap=GROUND,
        tooltip=tooltip(fields),
    )
    return chart.properties(width="container", height=300)


def mean_matrices(runs: Sequence[RunResult]) -> dict[str, Matrix]:
    """Return the mean matrix of each method, in percent, if all runs have the same number of several points."""
    means = {}
    for method, method_runs in by_method(runs).items():
        shapes = {np.shape(run.accuracy) for run in method_runs}
        if len(shapes) == 1 and len(shape := shapes.pop()) == 2 and shape[0] > 1:
            means[method] = np.asarray(100 * np.mean([run.accuracy for run in method_runs], axis=0))
    return means


def _num_tasks(matrices: Mapping[str, Matrix]) -> int:
    return max(int(size) for matrix in matrices.values() for size in matrix.shape)


def records_of(matrices: Mapping[str, Matrix]) -> list[Record]:
    """Return a record for each cell.

    >>> records_of({"er": np.array([[90.0, 10.0]])})[1]
    {'method': 'er', 'after': 1, 'task': 2, 'value': 10.0}
    """
    return [
        {"method": name, "after": after + 1, "task": task + 1, "value": float(matrix[after, task])}
        for name, matrix in matrices.items()
        for after, task in np.ndindex(*matrix.shape)
    ]
