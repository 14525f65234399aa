"""Charts of paired differences between methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gmed.paper.artifacts.charts import Record, data
from gmed.report.charts.chart import ACCENT, INK, MUTED, ROW, Chart, rows, tooltip
from gmed.report.comparisons import LEVELS
from gmed.report.grouping import edits_with_gmed, sets_only_memory
from gmed.results.stats import Comparison, describe_levels


def paired_differences(compared: Sequence[Comparison], anchor: str) -> Chart | None:
    """Return the chart of the differences at every seed for each comparison of one benchmark."""
    caption = (
        "Accuracy of the first method minus the second at each seed (dots), the mean and its 95 % interval (Student's "
        f"t). Stars: one-tailed paired t-test, Holm-corrected ({describe_levels(LEVELS)}); gray: none."
    )
    return _forest_plot(compared, [c.name for c in compared], f"{anchor}-paired", "Gains by seed", caption)


def gains_at_a_glance(
    compared: Sequence[Comparison], titles: Mapping[str, str], baseline: str | None = None
) -> Chart | None:
    """Return the chart of the gains on every benchmark: of GMED, or of every method over a baseline.

    Memory may have any size; other parameters have the defaults of the benchmark.
    """
    defaults = [c for c in compared if (baseline or edits_with_gmed(c.method)) and sets_only_memory(c.method)]
    methods, other = ("Each method", baseline) if baseline else ("Each method with GMED", "the same method without it")
    caption = (
        f"{methods}, with the default settings of the benchmark apart from the size of memory, minus {other}: every "
        "seed, the mean and its 95 % interval. Other settings and components are shown with their benchmark."
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
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(grid=True, ticks=False, domain=False))
    base = alt.Chart(rows()).encode(y)
    color = alt.condition("datum.marks != ''", alt.value(ACCENT), alt.value(MUTED))
    fields = [("name:N", "difference"), ("mean:Q", "mean"), ("low:Q", "95 % from"), ("high:Q", "to"), ("p:N", "p")]
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
    return Chart(name, title, caption, chart, records_of(compared, names), wide=True)


def records_of(compared: Sequence[Comparison], names: Sequence[str]) -> list[Record]:
    """Return a record for each pair of runs; the first of a comparison also holds its statistics."""
    records: list[Record] = []
    for comparison, name in zip(compared, names, strict=True):
        gain = comparison.gain
        for index, (seed, value) in enumerate(comparison.differences.items()):
            is_first = index == 0
            records.append(
                {
                    "name": name,
                    "seed": seed,
                    "value": value,
                    "marks": comparison.marks,
                    "mean": gain.mean if is_first else None,
                    "low": gain.low if is_first else None,
                    "high": gain.high if is_first else None,
                    "p": f"{gain.p:.4f} ({comparison.corrected_p:.4f} corrected)" if is_first else "",
                    "n": gain.n if is_first else None,
                    "edge": max(gain.high, *comparison.differences.values()) if is_first and comparison.marks else None,
                }
            )
    return records
