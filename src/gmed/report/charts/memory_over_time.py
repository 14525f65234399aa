"""The chart of the classes in memory after each task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record
from gmed.report.charts.chart import Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, first_choice

NAMED_CLASSES = 20
"""Number of classes up to which the legend names each."""


def memory_over_time(runs: Sequence[RunResult], names: Sequence[str], anchor: str) -> Chart | None:
    """Return the chart of the number of examples of each class, by name or number, stored after each task."""
    recorded = {
        method: records
        for method, method_runs in by_method(runs).items()
        if (records := records_of(method, method_runs, names))
    }
    if not recorded:
        return None
    import altair as alt

    classes = len({record["label"] for records in recorded.values() for record in records})
    scheme = "tableau10" if classes <= 10 else "tableau20" if classes <= NAMED_CLASSES else "turbo"
    scale = alt.Scale(scheme=scheme)  # type: ignore[arg-type]
    legend = alt.Legend(symbolOpacity=1) if classes <= NAMED_CLASSES else None
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
    defaults = [method for method in first_choice(runs) if method in recorded]
    return Chart(
        f"{anchor}-memory",
        "Content of memory",
        "Number of stored examples of each class at the end of each task, means over seeds.",
        chart,
        [record for records in recorded.values() for record in records],
        Choice("method", list(recorded), [next(iter(defaults or recorded))]),
    )


def records_of(method: str, runs: Sequence[RunResult], names: Sequence[str] = ()) -> list[Record]:
    """Return a record for each class at each point of evaluation, from the runs that counted them.

    >>> run = RunResult("b", "er", 0, [[0.8]], 0.8, 0.8, 1, {}, {}, memory=[[2, 0]])
    >>> records_of("er", [run])[0]
    {'method': 'er', 'task': 1, 'label': 0, 'count': 2.0}
    >>> records_of("er", [run], ["red", "white"])[0]
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
