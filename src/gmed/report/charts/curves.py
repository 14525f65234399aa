from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record
from gmed.report.charts.chart import CHOSEN, PALETTE, Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, first_choice


def curves(runs: Sequence[RunResult], place: str) -> Chart | None:
    """Accuracy after each task on the tasks met so far, with a band over seeds."""
    records = [record for method, own in by_method(runs).items() for record in records_of(method, own)]
    if not records:
        return None
    import altair as alt

    first = first_choice(runs)
    colour = alt.Color("method:N", title=None, scale=alt.Scale(domain=CHOSEN, range=PALETTE))
    across = alt.X(
        "task:Q",
        title="after task",
        axis=alt.Axis(tickMinStep=1, format="d", grid=False),
        scale=alt.Scale(zero=False, nice=False),
    )
    down = alt.Scale(zero=False, nice=True)
    title = "accuracy on tasks met so far, %"
    base = alt.Chart(rows()).encode(across, color=colour)
    band = base.mark_area(opacity=0.16).encode(alt.Y("low:Q", title=title, scale=down), alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=2).encode(alt.Y("mean:Q", title=title))
    points = base.mark_point(filled=True, size=46, opacity=1).encode(
        alt.Y("mean:Q", title=title),
        shape=alt.Shape("method:N", title=None, scale=alt.Scale(domain=CHOSEN)),
        tooltip=tooltip([("method:N", "method"), ("task:O", "after task"), ("mean:Q", "mean"), ("std:Q", "std")]),
    )
    return Chart(
        f"{place}-curves",
        "Accuracy after each task",
        "Mean accuracy over the tasks met so far, at the end of each; bands are one standard deviation over seeds to "
        "either side, cut at 100 %. At most eight methods at once.",
        (band + line + points).properties(width="container", height=300),
        records,
        Choice("method", list(dict.fromkeys([*first, *by_method(runs)])), first, several=True),
        wide=True,
    )


def records_of(method: str, runs: Sequence[RunResult]) -> list[Record]:
    """A record for each point of evaluation, where there is one at the end of each task.

    >>> run = lambda seed, a: RunResult("b", "er", seed, [[a, 0.0], [0.5, 1.0]], 0.75, 0.75, 1, {}, {})
    >>> [(r["task"], r["mean"], round(r["std"], 2)) for r in records_of("er", [run(0, 0.8), run(1, 1.0)])]
    [(1, 90.0, 14.14), (2, 75.0, 0.0)]
    """
    shapes = {np.shape(run.accuracy) for run in runs}
    if len(shapes) > 1 or any(len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2 for shape in shapes):
        return []
    matrices = 100 * np.array([run.accuracy for run in runs])
    found = []
    for point in range(matrices.shape[1]):
        met = matrices[:, point, : point + 1].mean(axis=1)
        mean, std = float(met.mean()), float(met.std(ddof=1)) if len(met) > 1 else math.nan
        reach = 0.0 if math.isnan(std) else std
        found.append(
            {
                "method": method,
                "task": point + 1,
                "mean": mean,
                "std": std,
                "low": mean - reach,
                "high": min(100.0, mean + reach),
            }
        )
    return found
