from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record
from gmed.report.charts.chart import Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, first_choice

NAMED_CLASSES = 20
"""Up to so many classes the legend names each."""


def memory_over_time(runs: Sequence[RunResult], names: Sequence[str], place: str) -> Chart | None:
    """How many examples of each class, by its name or else its number, are stored after each task."""
    found = {method: records for method, own in by_method(runs).items() if (records := records_of(method, own, names))}
    if not found:
        return None
    import altair as alt

    classes = len({record["label"] for records in found.values() for record in records})
    scheme = "tableau10" if classes <= 10 else "tableau20" if classes <= NAMED_CLASSES else "turbo"
    colours = alt.Scale(scheme=scheme)  # type: ignore[arg-type]
    legend = alt.Legend(symbolOpacity=1) if classes <= NAMED_CLASSES else None
    drawn = (
        alt.Chart(rows())
        .mark_bar()
        .encode(
            alt.X("task:O", title="after task", axis=alt.Axis(labelAngle=0, ticks=False)),
            alt.Y("count:Q", title="examples stored", stack=True),
            alt.Color("label:O", title="class", sort=list(names) or "ascending", scale=colours, legend=legend),
            order=alt.Order("place:Q" if names else "label:O"),
            tooltip=tooltip(
                [("method:N", "method"), ("task:O", "after task"), ("label:O", "class"), ("count:Q", "stored")]
            ),
        )
        .properties(width="container", height=280)
    )
    known = [method for method in first_choice(runs) if method in found]
    return Chart(
        f"{place}-memory",
        "What is in memory",
        "Examples of each class that are stored at the end of each task, means over seeds.",
        drawn,
        [record for records in found.values() for record in records],
        Choice("method", list(found), [next(iter(known or found))]),
    )


def records_of(method: str, runs: Sequence[RunResult], names: Sequence[str] = ()) -> list[Record]:
    """A record for each class at each point of evaluation, of the runs in which they were counted.

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
