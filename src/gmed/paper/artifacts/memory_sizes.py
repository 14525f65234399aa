"""The figure of accuracy against the size of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gmed.engine import get_benchmark, resolve
from gmed.errors import UsageError
from gmed.experiment import default_store
from gmed.paper.artifacts.base import ArtifactResult, Figure, Measurement, Request
from gmed.paper.artifacts.charts import COLORS, INK, SHAPES, Record, data, gain_columns, panel_title
from gmed.paper.catalog import get_target
from gmed.paper.plan import QUICK_SEEDS, PlannedRuns, Selection, compute, select_runs
from gmed.paper.tables import planned, reproduce
from gmed.results import Published
from gmed.results.stats import Comparison, compare

PANELS_IN_A_ROW = 3
EXTRA_SIZE = 1000
"""The size of memory that is in the figure but not in the table."""


class MemoryFigure(Figure):
    """Accuracy against the size of memory, with the table that has its numbers."""

    name = "memory-figure"
    title = "accuracy against size of memory"
    location = "Figure 2"

    def plan(self) -> list[PlannedRuns]:
        return [*planned(get_target("memory")), *extra_size()]

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        table = reproduce(
            "memory",
            benchmarks=request.benchmarks,
            seeds=request.seeds,
            quick=request.quick,
            callback=request.callback,
            **request.options,
        )
        benchmarks = {row.cell.benchmark for row in table.rows}
        selection = self._select_extra_size(benchmarks, request)
        extra = compute(selection.planned, request.callback, **request.options)
        table.missing |= selection.missing
        failures = [*table.failures, *extra.failures]
        result = ArtifactResult(self, request.quick, table=table, missing=table.missing, failures=failures)
        levels = () if request.quick else table.target.levels
        result.comparisons = compare(extra, extra_pairs(), levels)
        result.numbers = [
            Measurement.of(item.benchmark, item.method, percent)
            for item in extra_size()
            if (percent := [100 * accuracy for accuracy in extra.accuracies(item.benchmark, item.method).values()])
        ]
        result.notes.append(f"{self.location} also has {EXTRA_SIZE:,} examples; the paper gives no numbers for them.")
        comparisons = {(c.benchmark, c.method): c for c in (*table.comparisons, *result.comparisons)}
        return result, [
            *(
                record(row.cell.benchmark, row.cell.method, row.n, row.mean, row.std, comparisons, row.cell.published)
                for row in table.rows
            ),
            *(
                record(item.benchmark, item.quantity, item.n, item.mean, item.std, comparisons)
                for item in result.numbers
            ),
        ]

    def _select_extra_size(self, benchmarks: set[str], request: Request) -> Selection:
        """Return the runs of the extra size on these benchmarks that can be computed or are stored."""
        plan = [item for item in extra_size() if item.benchmark in benchmarks]
        seeds = request.seeds or (QUICK_SEEDS if request.quick else None)
        options = {"data_dir": request.options.get("data_dir"), "store": request.options.get("store", default_store())}
        with suppress(UsageError):  # the data are not available
            return select_runs(plan, self.location, seeds=seeds, **options)
        return Selection([], {})

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        panels = [
            _panel([record for record in records if record["benchmark"] == benchmark])
            for benchmark in dict.fromkeys(record["benchmark"] for record in records)
        ]
        return alt.concat(*panels, columns=PANELS_IN_A_ROW, spacing=24)

    def legend(self, records: list[Record]) -> list[str]:
        seeds = sorted({record["n"] for record in records})
        lines = [f"points: mean ± standard deviation, n = {' or '.join(map(str, seeds))} seeds; black lines: published"]
        if any(record["marks"] for record in records):
            lines.append("* gain over the unedited method with p < 0.05, one-tailed paired t-test, uncorrected")
        return lines


def extra_size() -> list[PlannedRuns]:
    """Return runs with the one size of memory that is in the paper's figure but in no table.

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


def record(
    benchmark: str,
    method: str,
    n: int,
    mean: float,
    std: float,
    comparisons: Mapping[tuple[str, str], Comparison],
    published: Published | None = None,
) -> Record:
    """Return the record of one method with one size of memory."""
    comparison = comparisons.get((benchmark, method))
    resolved, margin = resolve(get_benchmark(benchmark), method), 0.0 if math.isnan(std) else std
    return {
        "benchmark": benchmark,
        "method": resolved.base.name + (f"+{resolved.edit.name}" if resolved.edit else ""),
        "memory": resolved.base.parameters["memory"],
        "n": n,
        "mean": mean,
        "low": mean - margin,
        "high": mean + margin,
        "marks": comparison.marks if comparison else "",
        **gain_columns(comparison),
        "published": published.mean if published else None,
        "published_std": published.std if published else None,
        "published_marks": published.marks if published else None,
    }


def _panel(records: list[Record]) -> Any:
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
