"""Charts of every seed: a row of dots for each method or comparison, with their mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gmed.engine import RunResult
from gmed.paper.artifacts.charts import Record, data
from gmed.report.charts.chart import ACCENT, INK, MUTED, ROW, SECOND, Chart, rows, tooltip
from gmed.report.grouping import MethodRuns, edits_with_gmed, sets_only_memory
from gmed.report.tables import LEVELS
from gmed.results import Published
from gmed.results.metrics import backward_transfer, forgetting
from gmed.results.stats import Comparison, describe_levels


def final_accuracies(runs: MethodRuns, published: Callable[[str], Published | None]) -> Chart | None:
    """Return the chart of every seed's final accuracy, a row for each method, with the published mean."""
    reported = {method: number.mean for method in runs if (number := published(method)) is not None}
    return _seed_chart(
        runs,
        lambda run: run.final_accuracy,
        "seeds",
        "Every seed",
        "Final accuracy of each run (dots) and the mean (bar)" + ("; diamonds: published." if reported else "."),
        "final accuracy, %",
        reported,
    )


def forgettings(runs: MethodRuns) -> Chart | None:
    """Return the chart of forgetting: how far accuracy on earlier tasks has fallen from its best."""
    return _seed_chart(
        runs,
        lambda run: forgetting(run.accuracy),
        "forgetting",
        "Forgetting",
        "Average drop of the accuracy on earlier tasks from its maximum; lower is better.",
        "forgetting, points",
    )


def backward_transfers(runs: MethodRuns) -> Chart | None:
    """Return the chart of backward transfer: the change of accuracy on earlier tasks since each was learned."""
    return _seed_chart(
        runs,
        lambda run: backward_transfer(run.accuracy),
        "backward-transfer",
        "Backward transfer",
        "Average change of the accuracy on earlier tasks since each was learned; higher is better.",
        "backward transfer, points",
    )


def _seed_chart(
    runs: MethodRuns,
    measure: Callable[[RunResult], float],
    name: str,
    title: str,
    caption: str,
    axis: str,
    reported: dict[str, float] | None = None,
) -> Chart | None:
    records = method_records(runs, measure, reported or {})
    if not records:
        return None
    import altair as alt

    base = _rows_of("method:N")
    dots = base.mark_circle(size=30, opacity=0.5, color=ACCENT).encode(
        alt.X("value:Q", title=axis, scale=alt.Scale(zero=False, nice=True)),
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
    drawn = layers.properties(width="container", height=ROW * len(runs))
    return Chart(name, title, caption, drawn, records, wide=reported is not None)


def method_records(
    runs: MethodRuns, measure: Callable[[RunResult], float], reported: Mapping[str, float]
) -> list[Record]:
    """Return a record for each seed; the first of a method also holds its mean, number of seeds and published mean.

    >>> run = lambda seed, share: RunResult("b", "er", seed, [[share]], share, share, 1, {}, {})
    >>> runs = {"er": [run(0, 0.8), run(1, 0.9)]}
    >>> first, second = method_records(runs, lambda run: run.final_accuracy, {"er": 81.07})
    >>> round(first["mean"], 4), first["published"], second["value"], second["mean"]
    (85.0, 81.07, 90.0, None)
    """
    records: list[Record] = []
    for method, method_runs in runs.items():
        values = {run.seed: value for run in method_runs if (value := 100 * measure(run)) == value}
        if values:
            summary = {"mean": fmean(values.values()), "n": len(values), "published": reported.get(method)}
            records += _seed_records({"method": method}, values, summary)
    return records


def paired_differences(compared: Sequence[Comparison]) -> Chart | None:
    """Return the chart of the differences at every seed for each comparison of one benchmark."""
    caption = (
        "Accuracy of the first method minus the second at each seed (dots), the mean and its 95% interval (Student's "
        f"t). Stars: one-tailed paired t-test, Holm-corrected ({describe_levels(LEVELS)}); gray: none."
    )
    return _forest_plot(compared, [c.name for c in compared], "paired", "Gains by seed", caption)


def gains_at_a_glance(
    compared: Sequence[Comparison], titles: Mapping[str, str], baseline: str | None = None
) -> Chart | None:
    """Return the chart of the gains on every benchmark: of GMED, or of every method over a baseline.

    The memory may have any size; other parameters have the defaults of the benchmark.
    """
    defaults = [c for c in compared if (baseline or edits_with_gmed(c.method)) and sets_only_memory(c.method)]
    methods, other = ("Each method", baseline) if baseline else ("Each method with GMED", "the same method without it")
    caption = (
        f"{methods}, with the default settings of the benchmark apart from the memory size, minus {other}: every "
        "seed, the mean and its 95% interval. Other settings and components are shown with their benchmark."
    )
    names = [f"{c.method} · {titles[c.benchmark]}" for c in defaults]
    title = f"Gains over {baseline}" if baseline else "Gains of GMED"
    return _forest_plot(defaults, names, "gains", title, caption)


def _forest_plot(
    compared: Sequence[Comparison], names: Sequence[str], name: str, title: str, caption: str
) -> Chart | None:
    if not compared:
        return None
    import altair as alt

    axis = "difference in final accuracy, points"
    base = _rows_of("name:N")
    color = alt.condition("datum.marks != ''", alt.value(ACCENT), alt.value(MUTED))
    fields = [("name:N", "difference"), ("mean:Q", "mean"), ("low:Q", "95% from"), ("high:Q", "to"), ("p:N", "p")]
    tooltips = tooltip([*fields, ("n:O", "seeds")])
    zero = alt.Chart(data([{}])).mark_rule(color=INK, strokeDash=[4, 3]).encode(x=alt.datum(0))
    dots = base.mark_circle(size=24, opacity=0.4).encode(
        alt.X("value:Q", title=axis),
        color=color,
        tooltip=tooltip([("name:N", "difference"), ("seed:O", "seed"), ("value:Q", "points")]),
    )
    intervals = base.mark_rule(strokeWidth=3).encode(
        alt.X("low:Q", title=axis), alt.X2("high:Q"), color=color, tooltip=tooltips
    )
    mean = base.mark_point(shape="square", filled=True, size=52, opacity=1).encode(
        alt.X("mean:Q", title=axis), color=color, tooltip=tooltips
    )
    stars = base.mark_text(align="left", dx=5, dy=-1, color=INK, fontSize=12).encode(
        alt.X("edge:Q", title=axis), text="marks:N"
    )
    chart = (zero + dots + intervals + mean + stars).properties(width="container", height=(ROW + 2) * len(compared))
    return Chart(name, title, caption, chart, comparison_records(compared, names), wide=True)


def comparison_records(compared: Sequence[Comparison], names: Sequence[str]) -> list[Record]:
    """Return a record for each pair of runs; the first of a comparison also holds its statistics."""
    records: list[Record] = []
    for comparison, name in zip(compared, names, strict=True):
        gain, differences = comparison.gain, comparison.differences
        summary = {
            **{"mean": gain.mean, "low": gain.low, "high": gain.high, "n": gain.n},
            "p": f"{gain.p:.4f} ({comparison.corrected_p:.4f} corrected)",
            "edge": max(gain.high, *differences.values()) if comparison.marks else None,
        }
        records += _seed_records({"name": name, "marks": comparison.marks}, differences, summary)
    return records


def _seed_records(common: Record, values: Mapping[int, float], summary: Record) -> list[Record]:
    """Return a record for each seed of a row; the first one holds the summary, so that its marks are drawn once."""
    empty = {name: "" if isinstance(value, str) else None for name, value in summary.items()}
    return [
        {**common, "seed": seed, "value": value, **(empty if index else summary)}
        for index, (seed, value) in enumerate(values.items())
    ]


def _rows_of(column: str) -> Any:
    """Return the base of a chart with a row for each value of a column, in the order of the data."""
    import altair as alt

    y = alt.Y(column, title=None, sort=None, axis=alt.Axis(grid=True, ticks=False, domain=False))
    return alt.Chart(rows()).encode(y)
