"""Charts of a metric at every seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record
from gmed.report.charts.chart import ACCENT, INK, ROW, SECOND, Chart, rows, tooltip
from gmed.report.grouping import by_method
from gmed.results import Published
from gmed.results.metrics import backward_transfer, forgetting

Measure = Callable[[RunResult], float]


def final_accuracies(
    runs: Sequence[RunResult], published: Callable[[str, str], Published | None], anchor: str
) -> Chart | None:
    """Return the chart of every seed's final accuracy, a row for each method, with the published mean."""
    reported = {
        method: number.mean
        for method in by_method(runs)
        if (number := published(runs[0].benchmark, method)) is not None
    }
    return _seed_chart(
        runs,
        lambda run: run.final_accuracy,
        f"{anchor}-seeds",
        "Every seed",
        "Final accuracy of each run (dots) and the mean (bar)" + ("; diamonds: published." if reported else "."),
        "final accuracy, %",
        reported,
    )


def forgettings(runs: Sequence[RunResult], anchor: str) -> Chart | None:
    """Return the chart of forgetting: how far accuracy on earlier tasks has fallen from its best."""
    return _seed_chart(
        runs,
        lambda run: forgetting(run.accuracy),
        f"{anchor}-forgetting",
        "Forgetting",
        "Average drop of the accuracy on earlier tasks from its maximum; lower is better.",
        "forgetting, points",
    )


def backward_transfers(runs: Sequence[RunResult], anchor: str) -> Chart | None:
    """Return the chart of backward transfer: the change of accuracy on earlier tasks since each was learned."""
    return _seed_chart(
        runs,
        lambda run: backward_transfer(run.accuracy),
        f"{anchor}-backward-transfer",
        "Backward transfer",
        "Average change of the accuracy on earlier tasks since each was learned; higher is better.",
        "backward transfer, points",
    )


def _seed_chart(
    runs: Sequence[RunResult],
    measure: Measure,
    name: str,
    title: str,
    caption: str,
    axis: str,
    reported: dict[str, float] | None = None,
) -> Chart | None:
    records = records_of(runs, measure, reported or {})
    if not records:
        return None
    import altair as alt

    y = alt.Y("method:N", title=None, sort=None, axis=alt.Axis(grid=True, ticks=False, domain=False))
    scale = alt.Scale(zero=False, nice=True)
    base = alt.Chart(rows()).encode(y)
    dots = base.mark_circle(size=30, opacity=0.5, color=ACCENT).encode(
        alt.X("value:Q", title=axis, scale=scale),
        tooltip=tooltip([("method:N", "method"), ("seed:O", "seed"), ("value:Q", axis)]),
    )
    mean = base.mark_tick(thickness=2.5, size=14, color=INK).encode(
        alt.X("mean:Q", title=axis), tooltip=tooltip([("method:N", "method"), ("mean:Q", "mean"), ("n:O", "seeds")])
    )
    layers = dots + mean
    if reported:
        layers += base.mark_point(shape="diamond", filled=True, size=62, color=SECOND, opacity=1).encode(
            alt.X("published:Q", title=axis), tooltip=tooltip([("method:N", "method"), ("published:Q", "published")])
        )
    return Chart(
        name,
        title,
        caption,
        layers.properties(width="container", height=ROW * len(by_method(runs))),
        records,
        wide=reported is not None,
    )


def records_of(runs: Sequence[RunResult], measure: Measure, reported: dict[str, float]) -> list[Record]:
    """Return a record for each seed; the first of a method also holds its mean, number of seeds and published mean.

    >>> run = lambda seed, share: RunResult("b", "er", seed, [[share]], share, share, 1, {}, {})
    >>> first, second = records_of([run(0, 0.8), run(1, 0.9)], lambda run: run.final_accuracy, {"er": 81.07})
    >>> round(first["mean"], 4), first["published"], second["value"], second["mean"]
    (85.0, 81.07, 90.0, None)
    """
    records: list[Record] = []
    for method, method_runs in by_method(runs).items():
        values = {run.seed: 100 * measure(run) for run in method_runs}
        values = {seed: value for seed, value in values.items() if value == value}
        for index, (seed, value) in enumerate(values.items()):
            first = index == 0
            records.append(
                {
                    "method": method,
                    "seed": seed,
                    "value": value,
                    "mean": fmean(values.values()) if first else None,
                    "n": len(values) if first else None,
                    "published": reported.get(method) if first else None,
                }
            )
    return records
