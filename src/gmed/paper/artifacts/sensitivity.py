"""The figure of accuracy against the hyper-parameters of the edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gmed.engine import get_benchmark, resolve
from gmed.paper.artifacts.base import ArtifactResult, Figure, Measurement, Request
from gmed.paper.artifacts.charts import COLORS, GRAY, INK, Record, data, gain_columns, panel_title
from gmed.paper.plan import PlannedRuns, compute
from gmed.paper.published import published
from gmed.results import Results
from gmed.results.stats import Comparison, compare
from gmed.results.tuning import GRIDS

BENCHMARKS = ("split-mnist", "split-cifar10", "split-mini-imagenet")
SYMBOLS = {"alpha": "editing stride α", "beta": "regularization β"}


class Sensitivity(Figure):
    """Accuracy against one hyper-parameter of GMED, with the other at its tuned value."""

    name = "sensitivity"
    title = "accuracy against alpha and against beta"
    location = "Figure 5"

    def plan(self) -> list[PlannedRuns]:
        return [
            PlannedRuns(benchmark, method)
            for benchmark in BENCHMARKS
            for method in dict.fromkeys(["er", *(name for _, _, name in grid(benchmark))])
        ]

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        selection = self.select_runs(request)
        results = compute(selection.planned, request.callback, **request.options)
        result = ArtifactResult(self, request.quick, missing=selection.missing, failures=results.failures)
        for benchmark, method, _ in selection.planned:
            if percent := _percent(results, benchmark, method):
                reported = published(benchmark, method)
                reported_values = (reported.mean, reported.std, reported.n) if reported else ()
                result.numbers.append(Measurement.of(benchmark, method, percent, *reported_values))
        pairs = [(benchmark, method, "er") for benchmark, method, _ in selection.planned if method != "er"]
        result.comparisons = compare(results, pairs, levels=())
        result.notes.append(
            "Final accuracy in %. The paper gives no numbers for its figure; ours are compared with Table 1."
        )
        return result, [
            record
            for benchmark in selection.benchmarks
            for record in records_of(results, benchmark, result.comparisons)
        ]

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        rows = []
        for benchmark in dict.fromkeys(record["benchmark"] for record in records):
            panel_records = [record for record in records if record["benchmark"] == benchmark]
            ends = [record[end] for record in panel_records for end in ("low", "high")]
            scale = alt.Scale(domain=[min(ends), max(ends)], nice=True, zero=False)
            rows.append(alt.hconcat(*(_panel(panel_records, parameter, scale) for parameter in SYMBOLS), spacing=24))
        return alt.vconcat(*rows)

    def legend(self, records: list[Record]) -> list[str]:
        seeds = sorted({record["n"] for record in records})
        return [
            f"ER+GMED: mean ± standard deviation, n = {' or '.join(map(str, seeds))} seeds; filled: the tuned value",
            "dashed: ER; black line: published at the tuned value (Table 1)",
        ]


def grid(benchmark: str) -> list[tuple[str, float, str]]:
    """Return the parameter, its value and the method for every point of the figure.

    >>> [method for parameter, value, method in grid("split-mnist") if parameter == "beta"][:3]
    ['er+gmed(beta=0.0)', 'er+gmed(beta=0.001)', 'er+gmed']
    """
    resolved = get_benchmark(benchmark)
    return [
        (parameter, value, resolve(resolved, f"er+gmed({parameter}={value})").name)
        for parameter in SYMBOLS
        for value in GRIDS["gmed"][parameter]
    ]


def records_of(results: Results, benchmark: str, comparisons: Iterable[Comparison]) -> list[Record]:
    """Return a record for each point of a benchmark that has runs."""
    er, records = _percent(results, benchmark, "er"), []
    compared_with_er = {c.method: c for c in comparisons if c.benchmark == benchmark}
    for parameter, value, method in grid(benchmark):
        if percent := _percent(results, benchmark, method):
            mean, std = float(np.mean(percent)), float(np.std(percent, ddof=1)) if len(percent) > 1 else 0.0
            tuned = method == "er+gmed"
            comparison = compared_with_er.get(method)
            reported = published(benchmark, method) if tuned else None
            records.append(
                {
                    "benchmark": benchmark,
                    "parameter": parameter,
                    "value": value,
                    "n": len(percent),
                    "mean": mean,
                    "low": mean - std,
                    "high": mean + std,
                    "tuned": tuned,
                    "er": float(np.mean(er)) if er else None,
                    **gain_columns(comparison),
                    "published": reported.mean if reported else None,
                }
            )
    return records


def _percent(results: Results, benchmark: str, method: str) -> list[float]:
    return [100 * accuracy for accuracy in results.accuracies(benchmark, method).values()]


def _panel(records: list[Record], parameter: str, scale: Any) -> Any:
    import altair as alt

    points_data = [record for record in records if record["parameter"] == parameter]
    title, color = "final accuracy, %", COLORS["er+gmed"]
    x = alt.X("value:O", title=SYMBOLS[parameter], axis=alt.Axis(labelAngle=0, grid=False), sort=None)
    base = alt.Chart(data(points_data)).encode(x)
    mean = alt.Y("mean:Q", title=title, scale=scale)
    spread = base.mark_rule(color=color).encode(alt.Y("low:Q", title=title), alt.Y2("high:Q"))
    line = base.mark_line(color=color, strokeWidth=1.5).encode(mean)
    fill = alt.condition("datum.tuned", alt.value(color), alt.value("white"))
    points = base.mark_point(color=color, size=55, opacity=1, strokeWidth=1.5).encode(mean, fill=fill)
    published = (
        base.transform_filter("datum.tuned")
        .mark_tick(color=INK, thickness=2, size=16)
        .encode(alt.Y("published:Q", title=title))
    )
    er = (
        alt.Chart(data(points_data[:1]))
        .mark_rule(strokeDash=[5, 4], color=GRAY, strokeWidth=1.5)
        .encode(alt.Y("er:Q", title=title))
    )
    return (er + spread + line + published + points).properties(
        width=300, height=190, title=panel_title(points_data[0]["benchmark"])
    )
