"""The figures of accuracy: against the memory size, and against the hyper-parameters of the edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gmed.engine import get_benchmark, resolve
from gmed.errors import UsageError
from gmed.paper.artifacts.base import ArtifactResult, Figure, Measurement, Request, reproduce_table
from gmed.paper.artifacts.charts import (
    COLORS,
    GRAY,
    INK,
    SHAPES,
    Record,
    data,
    gain_columns,
    panel_title,
    seed_counts,
    split_by,
    spread_columns,
)
from gmed.paper.catalog import get_target
from gmed.paper.plan import QUICK_SEEDS, PlannedRuns, Selection, compute
from gmed.paper.published import published
from gmed.paper.tables import TableRow, percent, planned
from gmed.results import Published, Results
from gmed.results.stats import Comparison, compare
from gmed.results.tuning import GRIDS

PANELS_IN_A_ROW = 3
EXTRA_SIZE = 1000
"""The memory size that is in the figure but not in the table."""


class MemoryFigure(Figure):
    """Accuracy against the memory size, with the table of its numbers."""

    name = "memory-figure"
    title = "accuracy against size of memory"
    location = "Figure 2"

    def plan(self) -> list[PlannedRuns]:
        return [*planned(get_target("memory")), *extra_size()]

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        table = reproduce_table("memory", request)
        benchmarks = {row.cell.benchmark for row in table.rows}
        selection = self._select_extra_size(benchmarks, request)
        extra = compute(selection.planned, request.callback, **request.options)
        table.missing |= selection.missing
        failures = [*table.failures, *extra.failures]
        result = ArtifactResult(self, request.quick, table=table, missing=table.missing, failures=failures)
        levels = () if request.quick else table.target.levels
        result.comparisons = compare(extra, extra_pairs(), levels)
        result.numbers = [
            Measurement.of(item.benchmark, item.method, accuracies)
            for item in extra_size()
            if (accuracies := percent(extra, item.benchmark, item.method))
        ]
        result.notes.append(f"{self.location} also has {EXTRA_SIZE:,} examples; the paper gives no numbers for them.")
        comparisons = {(c.benchmark, c.method): c for c in (*table.comparisons, *result.comparisons)}
        records = [
            memory_record(row.cell.benchmark, row.cell.method, row, comparisons, row.cell.published)
            for row in table.rows
        ]
        records += [memory_record(n.benchmark, n.quantity, n, comparisons) for n in result.numbers]
        return result, records

    def _select_extra_size(self, benchmarks: set[str], request: Request) -> Selection:
        """Return the runs of the extra size on these benchmarks that are possible or stored."""
        plan = [item for item in extra_size() if item.benchmark in benchmarks]
        seeds = request.seeds or (QUICK_SEEDS if request.quick else None)
        with suppress(UsageError):  # the data are not available
            return self.select_runs(replace(request, benchmarks=(), seeds=seeds, quick=False), plan)
        return Selection([], {})

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        panels = map(_memory_panel, split_by(records, "benchmark").values())
        return alt.concat(*panels, columns=PANELS_IN_A_ROW, spacing=24)

    def legend(self, records: list[Record]) -> list[str]:
        lines = [f"points: mean ± standard deviation, n = {seed_counts(records)} seeds; black lines: published"]
        if any(record["marks"] for record in records):
            lines.append("* gain over the unedited method with p < 0.05, one-tailed paired t-test, uncorrected")
        return lines


def extra_size() -> list[PlannedRuns]:
    """Return runs with the one memory size that is in the paper's figure but in none of its tables.

    >>> [one.method for one in extra_size()][:3]
    ['er(memory=1000)', 'er(memory=1000)+gmed', 'mir(memory=1000)']
    """
    return [
        PlannedRuns(benchmark, f"{base}(memory={EXTRA_SIZE}){edit}")
        for benchmark in dict.fromkeys(cell.benchmark for cell in get_target("memory").cells())
        for base in ("er", "mir")
        for edit in ("", "+gmed")
    ]


def extra_pairs() -> list[tuple[str, str, str]]:
    """Return the edited methods of that size on their benchmarks, with the baseline of each.

    >>> extra_pairs()[0]
    ('split-mnist', 'er(memory=1000)+gmed', 'er(memory=1000)')
    """
    resolved = [(item.benchmark, resolve(get_benchmark(item.benchmark), item.method)) for item in extra_size()]
    return [(benchmark, method.name, method.baseline_name) for benchmark, method in resolved if method.baseline_name]


def memory_record(
    benchmark: str,
    method: str,
    measured: TableRow | Measurement,
    comparisons: Mapping[tuple[str, str], Comparison],
    published: Published | None = None,
) -> Record:
    """Return the record of one method with one size of memory."""
    comparison = comparisons.get((benchmark, method))
    resolved = resolve(get_benchmark(benchmark), method)
    return {
        "benchmark": benchmark,
        "method": resolved.base.name + (f"+{resolved.edit.name}" if resolved.edit else ""),
        "memory": resolved.base.parameters["memory"],
        "n": measured.n,
        **spread_columns(measured.mean, measured.std),
        "marks": comparison.marks if comparison else "",
        **gain_columns(comparison),
        "published": published.mean if published else None,
        "published_std": published.std if published else None,
        "published_marks": published.marks if published else None,
    }


def _memory_panel(records: list[Record]) -> Any:
    import altair as alt

    methods = [method for method in COLORS if any(record["method"] == method for record in records)]
    title, legend = "final accuracy, %", alt.Legend(orient="bottom")
    colors = alt.Scale(domain=methods, range=[COLORS[method] for method in methods])
    shapes = alt.Scale(domain=methods, range=SHAPES[: len(methods)])
    base = alt.Chart(data(records)).encode(
        alt.X("memory:O", title="examples in memory", axis=alt.Axis(labelAngle=0, grid=False)),
        alt.XOffset("method:N", sort=methods),
        color=alt.Color("method:N", title=None, scale=colors, legend=legend),
    )
    spread = base.mark_rule(strokeWidth=1.5).encode(
        alt.Y("low:Q", title=title, scale=alt.Scale(zero=False)), alt.Y2("high:Q")
    )
    points = base.mark_point(filled=True, size=45, opacity=1).encode(
        alt.Y("mean:Q", title=title), shape=alt.Shape("method:N", title=None, scale=shapes, legend=legend)
    )
    published = base.mark_tick(thickness=2, size=13).encode(alt.Y("published:Q", title=title), color=alt.value(INK))
    stars = base.mark_text(dy=-5, fontSize=15).encode(
        alt.Y("high:Q", title=title), text="marks:N", color=alt.value(INK)
    )
    layers = spread + published + points + stars
    return layers.properties(width=230, height=190, title=panel_title(records[0]["benchmark"]))


SENSITIVITY_BENCHMARKS = ("split-mnist", "split-cifar10", "split-mini-imagenet")
SYMBOLS = {"alpha": "editing stride α", "beta": "regularization β"}


class Sensitivity(Figure):
    """Accuracy against one hyper-parameter of GMED, with the other at its tuned value."""

    name = "sensitivity"
    title = "accuracy against alpha and against beta"
    location = "Figure 5"

    def plan(self) -> list[PlannedRuns]:
        return [
            PlannedRuns(benchmark, method)
            for benchmark in SENSITIVITY_BENCHMARKS
            for method in dict.fromkeys(["er", *(name for _, _, name in grid(benchmark))])
        ]

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        selection = self.select_runs(request)
        results = compute(selection.planned, request.callback, **request.options)
        result = ArtifactResult(self, request.quick, missing=selection.missing, failures=results.failures)
        for benchmark, method, _ in selection.planned:
            if accuracies := percent(results, benchmark, method):
                reported = published(benchmark, method)
                reported_values = (reported.mean, reported.std, reported.n) if reported else ()
                result.numbers.append(Measurement.of(benchmark, method, accuracies, *reported_values))
        pairs = [(benchmark, method, "er") for benchmark, method, _ in selection.planned if method != "er"]
        result.comparisons = compare(results, pairs, levels=())
        result.notes.append(
            "Final accuracy in %. The paper gives no numbers for this figure; results are compared with Table 1."
        )
        return result, [
            record
            for benchmark in selection.benchmarks
            for record in sensitivity_records(results, benchmark, result.comparisons)
        ]

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        rows = []
        for panel_records in split_by(records, "benchmark").values():
            ends = [record[end] for record in panel_records for end in ("low", "high")]
            scale = alt.Scale(domain=[min(ends), max(ends)], nice=True, zero=False)
            rows.append(
                alt.hconcat(*(_sensitivity_panel(panel_records, parameter, scale) for parameter in SYMBOLS), spacing=24)
            )
        return alt.vconcat(*rows)

    def legend(self, records: list[Record]) -> list[str]:
        return [
            f"ER+GMED: mean ± standard deviation, n = {seed_counts(records)} seeds; filled: the tuned value",
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


def sensitivity_records(results: Results, benchmark: str, comparisons: Iterable[Comparison]) -> list[Record]:
    """Return a record for each point of a benchmark that has runs."""
    er, records = percent(results, benchmark, "er"), []
    compared_with_er = {c.method: c for c in comparisons if c.benchmark == benchmark}
    for parameter, value, method in grid(benchmark):
        if accuracies := percent(results, benchmark, method):
            is_tuned = method == "er+gmed"
            reported = published(benchmark, method) if is_tuned else None
            std = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
            records.append(
                {
                    "benchmark": benchmark,
                    "parameter": parameter,
                    "value": value,
                    "n": len(accuracies),
                    **spread_columns(float(np.mean(accuracies)), std),
                    "tuned": is_tuned,
                    "er": float(np.mean(er)) if er else None,
                    **gain_columns(compared_with_er.get(method)),
                    "published": reported.mean if reported else None,
                }
            )
    return records


def _sensitivity_panel(records: list[Record], parameter: str, scale: Any) -> Any:
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
