"""The chart of accuracy after each task."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record
from gmed.report.charts.chart import CHOSEN, PALETTE, Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, first_choice


def curves(runs: Sequence[RunResult], anchor: str) -> Chart | None:
    """Return the chart of accuracy on the tasks seen so far, after each task, with a band over seeds."""
    records = [record for method, method_runs in by_method(runs).items() for record in records_of(method, method_runs)]
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
        f"{anchor}-curves",
        "Accuracy after each task",
        "Mean accuracy on the tasks seen so far, at the end of each task; bands: ± one standard deviation over seeds, "
        "clipped at 100 %. At most eight methods at once.",
        (band + line + points).properties(width="container", height=300),
        records,
        Choice("method", list(dict.fromkeys([*default, *by_method(runs)])), default, several=True),
        wide=True,
    )


def records_of(method: str, runs: Sequence[RunResult]) -> list[Record]:
    """Return a record for each point of evaluation, if there is one at the end of each task.

    >>> run = lambda seed, a: RunResult("b", "er", seed, [[a, 0.0], [0.5, 1.0]], 0.75, 0.75, 1, {}, {})
    >>> [(r["task"], r["mean"], round(r["std"], 2)) for r in records_of("er", [run(0, 0.8), run(1, 1.0)])]
    [(1, 90.0, 14.14), (2, 75.0, 0.0)]
    """
    shapes = {np.shape(run.accuracy) for run in runs}
    if len(shapes) > 1 or any(len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2 for shape in shapes):
        return []
    matrices = 100 * np.array([run.accuracy for run in runs])
    records = []
    for point in range(matrices.shape[1]):
        accuracy = matrices[:, point, : point + 1].mean(axis=1)
        mean, std = float(accuracy.mean()), float(accuracy.std(ddof=1)) if len(accuracy) > 1 else math.nan
        margin = 0.0 if math.isnan(std) else std
        records.append(
            {
                "method": method,
                "task": point + 1,
                "mean": mean,
                "std": std,
                "low": mean - margin,
                "high": min(100.0, mean + margin),
            }
        )
    return records
