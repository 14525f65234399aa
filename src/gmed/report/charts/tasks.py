"""Charts of the state after each task: the accuracy on every task, and the classes in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record, heat_map
from gmed.report.charts.chart import CHOSEN, GROUND, PALETTE, Chart, Choice, rows, tooltip
from gmed.report.grouping import MethodRuns, first_choice
from gmed.results.stats import Comparison

Matrix = NDArray[np.float64]

MAX_NUMBERED_TASKS = 10
"""Maximum number of tasks for which cells have room for numbers."""

MAX_NAMED_CLASSES = 20
"""Maximum number of classes for which the legend names each."""


def curves(runs: MethodRuns) -> Chart | None:
    """Return the chart of accuracy on the tasks seen so far, after each task, with a band over seeds."""
    records = [record for method, method_runs in runs.items() for record in curve_records(method, method_runs)]
    if not records:
        return None
    import altair as alt

    default = first_choice(runs)
    color = alt.Color("method:N", title=None, scale=alt.Scale(domain=CHOSEN, range=PALETTE))
    x = alt.X(
        "task:Q",
        title="after task",
        axis=alt.Axis(tickMinStep=1, format="d", grid=False),
        scale=alt.Scale(zero=False, nice=False),
    )
    scale = alt.Scale(zero=False, nice=True)
    title = "accuracy on tasks seen so far, %"
    base = alt.Chart(rows()).encode(x, color=color)
    band = base.mark_area(opacity=0.16).encode(alt.Y("low:Q", title=title, scale=scale), alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=2).encode(alt.Y("mean:Q", title=title))
    points = base.mark_point(filled=True, size=46, opacity=1).encode(
        alt.Y("mean:Q", title=title),
        shape=alt.Shape("method:N", title=None, scale=alt.Scale(domain=CHOSEN)),
        tooltip=tooltip([("method:N", "method"), ("task:O", "after task"), ("mean:Q", "mean"), ("std:Q", "std")]),
    )
    return Chart(
        "curves",
        "Accuracy after each task",
        "Mean accuracy on the tasks seen so far, at the end of each task; bands: ± one standard deviation over seeds, "
        "clipped at 100%. At most eight methods at once.",
        (band + line + points).properties(width="container", height=300),
        records,
        Choice("method", list(dict.fromkeys([*default, *runs])), default, several=True),
        wide=True,
    )


def curve_records(method: str, runs: Sequence[RunResult]) -> list[Record]:
    """Return a record for each point of evaluation, if there is one at the end of each task.

    >>> run = lambda seed, a: RunResult("b", "er", seed, [[a, 0.0], [0.5, 1.0]], 0.75, 0.75, 1, {}, {})
    >>> [(r["task"], r["mean"], round(r["std"], 2)) for r in curve_records("er", [run(0, 0.8), run(1, 1.0)])]
    [(1, 90.0, 14.14), (2, 75.0, 0.0)]
    """
    matrices = stacked_matrices(runs)
    if matrices is None or matrices.shape[1] != matrices.shape[2]:
        return []
    records = []
    for point in range(matrices.shape[1]):
        accuracy = (100 * matrices[:, point, : point + 1]).mean(axis=1)
        mean, std = float(accuracy.mean()), float(accuracy.std(ddof=1)) if len(accuracy) > 1 else math.nan
        margin = 0.0 if math.isnan(std) else std
        band = {"low": mean - margin, "high": min(100.0, mean + margin)}
        records.append({"method": method, "task": point + 1, "mean": mean, "std": std, **band})
    return records


def task_matrices(runs: MethodRuns) -> Chart | None:
    """Return the chart of accuracy on every task after every task, by method."""
    means = mean_matrices(runs)
    if not means:
        return None
    import altair as alt

    return Chart(
        "tasks",
        "Accuracy by task",
        "Mean accuracy over seeds on every task (columns) at the end of every task (rows): a column fades where a task "
        "is forgotten.",
        _matrix_chart(alt.Scale(scheme="viridis", domain=[0, 100]), "accuracy, %", means, ".0f", "datum.value < 60"),
        matrix_records(means),
        Choice.one_of("method", means, first_choice(runs)),
    )


def task_differences(runs: MethodRuns, compared: Sequence[Comparison]) -> Chart | None:
    """Return the chart of the difference of each method and its baseline, by task."""
    means = mean_matrices(runs)
    differences = {
        c.name: means[c.method] - means[c.baseline] for c in compared if c.method in means and c.baseline in means
    }
    if not differences:
        return None
    import altair as alt

    limit = max(1.0, float(max(np.abs(matrix).max() for matrix in differences.values())))
    scale = alt.Scale(scheme="redblue", domain=[-limit, limit], domainMid=0)
    return Chart(
        "task-differences",
        "Gains by task",
        "Mean accuracy of the first method minus the second, on every task at the end of every task: blue higher, "
        "red lower.",
        _matrix_chart(scale, "difference, points", differences, "+.1f", f"abs(datum.value) > {0.7 * limit}"),
        matrix_records(differences),
        Choice.one_of("method", differences, [c.name for c in compared if c.method in first_choice(runs)]),
    )


def _matrix_chart(scale: Any, title: str, matrices: Mapping[str, Matrix], number: str, white: str) -> Any:
    """Return a heat map of tasks by tasks; with few tasks, the cells have room for numbers."""
    fields = [("method:N", "method"), ("after:O", "after task"), ("task:O", "on task"), ("value:Q", title)]
    has_room = max(size for matrix in matrices.values() for size in matrix.shape) <= MAX_NUMBERED_TASKS
    chart = heat_map(
        rows(),
        ("task", "on task"),
        ("after", "after task"),
        ("value", title),
        scale,
        number=number if has_room else "",
        white=white,
        gap=GROUND,
        tooltip=tooltip(fields),
    )
    return chart.properties(width="container", height=300)


def mean_matrices(runs: MethodRuns) -> dict[str, Matrix]:
    """Return the mean matrix of each method, in percent, if all its runs have the same points, at least two."""
    stacks = {method: stacked_matrices(method_runs) for method, method_runs in runs.items()}
    return {method: 100 * stack.mean(axis=0) for method, stack in stacks.items() if stack is not None}


def stacked_matrices(runs: Sequence[RunResult]) -> Matrix | None:
    """Return accuracies by run, point of evaluation and task, if all runs have the same points, at least two."""
    shapes = {np.shape(run.accuracy) for run in runs}
    if len(shapes) > 1 or any(len(shape) != 2 or shape[0] < 2 for shape in shapes):
        return None
    return np.array([run.accuracy for run in runs])


def matrix_records(matrices: Mapping[str, Matrix]) -> list[Record]:
    """Return a record for each cell.

    >>> matrix_records({"er": np.array([[90.0, 10.0]])})[1]
    {'method': 'er', 'after': 1, 'task': 2, 'value': 10.0}
    """
    return [
        {"method": name, "after": after + 1, "task": task + 1, "value": float(matrix[after, task])}
        for name, matrix in matrices.items()
        for after, task in np.ndindex(*matrix.shape)
    ]


def memory_over_time(runs: MethodRuns, names: Sequence[str]) -> Chart | None:
    """Return the chart of the number of examples of each class, by name or number, stored after each task."""
    records = [record for method, method_runs in runs.items() for record in memory_records(method, method_runs, names)]
    if not records:
        return None
    import altair as alt

    classes = len({record["label"] for record in records})
    scheme = "tableau10" if classes <= 10 else "tableau20" if classes <= MAX_NAMED_CLASSES else "turbo"
    scale = alt.Scale(scheme=scheme)  # type: ignore[arg-type]
    legend = alt.Legend(symbolOpacity=1) if classes <= MAX_NAMED_CLASSES else None
    chart = (
        alt.Chart(rows())
        .mark_bar()
        .encode(
            alt.X("task:O", title="after task", axis=alt.Axis(labelAngle=0, ticks=False)),
            alt.Y("count:Q", title="examples stored", stack=True),
            alt.Color("label:O", title="class", sort=list(names) or "ascending", scale=scale, legend=legend),
            order=alt.Order("place:Q" if names else "label:O"),
            tooltip=tooltip(
                [("method:N", "method"), ("task:O", "after task"), ("label:O", "class"), ("count:Q", "stored")]
            ),
        )
        .properties(width="container", height=280)
    )
    return Chart(
        "memory",
        "Content of memory",
        "Number of stored examples of each class at the end of each task, means over seeds.",
        chart,
        records,
        Choice.one_of("method", dict.fromkeys(record["method"] for record in records), first_choice(runs)),
    )


def memory_records(method: str, runs: Sequence[RunResult], names: Sequence[str] = ()) -> list[Record]:
    """Return a record for each class at each point of evaluation, from the runs that counted them.

    >>> run = RunResult("b", "er", 0, [[0.8]], 0.8, 0.8, 1, {}, {}, memory=[[2, 0]])
    >>> memory_records("er", [run])[0]
    {'method': 'er', 'task': 1, 'label': 0, 'count': 2.0}
    >>> memory_records("er", [run], ["red", "white"])[0]
    {'method': 'er', 'task': 1, 'label': 'red', 'place': 0, 'count': 2.0}
    """
    counted = [run.memory for run in runs if run.memory]
    if not counted or len({np.shape(counts) for counts in counted}) > 1:
        return []
    means = np.mean(counted, axis=0)
    return [
        {
            **{"method": method, "task": point + 1},
            **({"label": names[label], "place": label} if names else {"label": label}),
            "count": float(means[point, label]),
        }
        for point, label in np.ndindex(*means.shape)
        if means[point, label] > 0
    ]
