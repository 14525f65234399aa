from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record, heat_map
from gmed.report.charts.chart import GROUND, Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, first_choice
from gmed.results.comparisons import Comparison

Matrix = NDArray[np.float64]

MAX_CHOICES = 10
"""Up to so many tasks, cells have room for their numbers."""


def task_matrices(runs: Sequence[RunResult], place: str) -> Chart | None:
    """Accuracy on every task after every task, method by method."""
    means = mean_matrices(runs)
    if not means:
        return None
    import altair as alt

    known = [method for method in first_choice(runs) if method in means]
    return Chart(
        f"{place}-tasks",
        "Task by task",
        "Mean accuracy over seeds on every task (across) at the end of every task (down): a column fades where a task "
        "is forgotten.",
        _drawn(alt.Scale(scheme="viridis", domain=[0, 100]), "accuracy, %", _tasks(means), ".0f", "datum.value < 60"),
        records_of(means),
        Choice("method", list(means), [next(iter(known or means))]),
    )


def task_differences(runs: Sequence[RunResult], compared: Sequence[Comparison], place: str) -> Chart | None:
    """What every part changes, task by task."""
    means = mean_matrices(runs)
    apart = {c.name: means[c.method] - means[c.rival] for c in compared if c.method in means and c.rival in means}
    if not apart:
        return None
    import altair as alt

    most = max(1.0, float(max(np.abs(matrix).max() for matrix in apart.values())))
    return Chart(
        f"{place}-task-differences",
        "What each part changes, task by task",
        "Mean accuracy with the part named last minus without it, on every task at the end of every task: blue higher, "
        "red lower.",
        _drawn(
            alt.Scale(scheme="redblue", domain=[-most, most], domainMid=0),
            "difference, points",
            _tasks(apart),
            "+.1f",
            f"abs(datum.value) > {0.7 * most}",
        ),
        records_of(apart),
        Choice(
            "method",
            list(apart),
            [next((c.name for c in compared if c.method in first_choice(runs)), next(iter(apart)))],
        ),
    )


def _drawn(scale: Any, what: str, tasks: int, number: str, white: str) -> Any:
    """Tasks across and down; the cells have room for numbers where there are few."""
    about = [("method:N", "method"), ("after:O", "after task"), ("task:O", "on task"), ("value:Q", what)]
    drawn = heat_map(
        rows(),
        ("task", "on task"),
        ("after", "after task"),
        ("value", what),
        scale,
        number=number if tasks <= MAX_CHOICES else "",
        white=white,
        gap=GROUND,
        tooltip=tooltip(about),
    )
    return drawn.properties(width="container", height=300)


def mean_matrices(runs: Sequence[RunResult]) -> dict[str, Matrix]:
    """The mean matrix of every method, in percent, where it has several points and all runs have as many."""
    found = {}
    for method, own in by_method(runs).items():
        shapes = {np.shape(run.accuracy) for run in own}
        if len(shapes) == 1 and len(shape := shapes.pop()) == 2 and shape[0] > 1:
            found[method] = np.asarray(100 * np.mean([run.accuracy for run in own], axis=0))
    return found


def _tasks(matrices: Mapping[str, Matrix]) -> int:
    return max(int(size) for matrix in matrices.values() for size in matrix.shape)


def records_of(matrices: Mapping[str, Matrix]) -> list[Record]:
    """A record for each cell.

    >>> records_of({"er": np.array([[90.0, 10.0]])})[1]
    {'method': 'er', 'after': 1, 'task': 2, 'value': 10.0}
    """
    return [
        {"method": name, "after": after + 1, "task": task + 1, "value": float(matrix[after, task])}
        for name, matrix in matrices.items()
        for after, task in np.ndindex(*matrix.shape)
    ]
