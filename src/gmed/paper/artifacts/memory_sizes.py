"""Accuracy over the size of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gmed.engine import get_benchmark, resolve
from gmed.errors import UsageError
from gmed.experiment import default_store
from gmed.paper.artifacts.base import ArtifactResult, Figure, Number, Request
from gmed.paper.artifacts.charts import COLORS, INK, SHAPES, Record, data, gain_columns, panel_title
from gmed.paper.catalog import get_target
from gmed.paper.plan import QUICK_SEEDS, PlannedRuns, Selection, choose, compute
from gmed.paper.tables import planned, reproduce
from gmed.results import Published
from gmed.results.comparisons import Comparison, compare

PANELS_IN_A_ROW = 3
EXTRA_SIZE = 1000
"""The size of memory that the figure has besides those of the table."""


class MemoryFigure(Figure):
    """Accuracy against the size of memory; its numbers are those of a table, which it shows as well."""

    name = "memory-figure"
    title = "accuracy against size of memory"
    where = "Figure 2"

    def plan(self) -> list[PlannedRuns]:
        return [*planned(get_target("memory")), *extra_size()]

    def find(self, asked: Request) -> tuple[ArtifactResult, list[Record]]:
        table = reproduce(
            "memory",
            benchmarks=asked.benchmarks,
            seeds=asked.seeds,
            quick=asked.quick,
            watcher=asked.watcher,
            **asked.how,
        )
        drawn = {row.cell.benchmark for row in table.rows}
        besides = self._further(drawn, asked)
        further = compute(besides.planned, asked.watcher, **asked.how)
        table.missing |= besides.missing
        failures = [*table.failures, *further.failures]
        found = ArtifactResult(self, asked.quick, table=table, missing=table.missing, failures=failures)
        levels = () if asked.quick else table.target.levels
        found.comparisons = compare(further, extra_pairs(), levels)
        found.numbers = [
            Number.of(one.benchmark, one.method, percent)
            for one in extra_size()
            if (percent := [100 * accuracy for accuracy in further.accuracies(one.benchmark, one.method).values()])
        ]
        found.notes.append(f"{self.where} has {EXTRA_SIZE:,} examples besides; the paper gives no numbers for them.")
        beside = {(c.benchmark, c.method): c for c in (*table.comparisons, *found.comparisons)}
        return found, [
            *(
                record(row.cell.benchmark, row.cell.method, row.n, row.mean, row.std, beside, row.cell.published)
                for row in table.rows
            ),
            *(record(one.benchmark, one.quantity, one.n, one.mean, one.std, beside) for one in found.numbers),
        ]

    def _further(self, benchmarks: set[str], asked: Request) -> Selection:
        """The further size of these benchmarks, where it can be computed or the store has it."""
        plan = [one for one in extra_size() if one.benchmark in benchmarks]
        seeds = asked.seeds or (QUICK_SEEDS if asked.quick else None)
        how = {"data_dir": asked.how.get("data_dir"), "store": asked.how.get("store", default_store())}
        with suppress(UsageError):  # the data are not here
            return choose(plan, self.where, seeds=seeds, **how)
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
    """Runs with the one size of memory for which the paper has a figure, and no table.

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
    """Of that size, the edited methods on their benchmarks, and what each is compared with.

    >>> extra_pairs()[0]
    ('split-mnist', 'er(memory=1000)+gmed', 'er(memory=1000)')
    """
    made = [(one.benchmark, resolve(get_benchmark(one.benchmark), one.method)) for one in extra_size()]
    return [(benchmark, method.name, method.baseline_name) for benchmark, method in made if method.baseline_name]


def record(
    benchmark: str,
    method: str,
    n: int,
    mean: float,
    std: float,
    comparisons: Mapping[tuple[str, str], Comparison],
    published: Published | None = None,
) -> Record:
    """What is drawn of one method with one size of memory."""
    beside = comparisons.get((benchmark, method))
    made, reach = resolve(get_benchmark(benchmark), method), 0.0 if math.isnan(std) else std
    return {
        "benchmark": benchmark,
        "method": made.base.name + (f"+{made.edit.name}" if made.edit else ""),
        "memory": made.base.parameters["memory"],
        "n": n,
        "mean": mean,
        "low": mean - reach,
        "high": mean + reach,
        "marks": beside.marks if beside else "",
        **gain_columns(beside),
        "published": published.mean if published else None,
        "published_std": published.std if published else None,
        "published_marks": published.marks if published else None,
    }


def _panel(records: list[Record]) -> Any:
    import altair as alt

    methods = [method for method in COLORS if any(record["method"] == method for record in records)]
    title, below = "final accuracy, %", alt.Legend(orient="bottom")
    colours = alt.Scale(domain=methods, range=[COLORS[method] for method in methods])
    shapes = alt.Scale(domain=methods, range=SHAPES[: len(methods)])
    base = alt.Chart(data(records)).encode(
        alt.X("memory:O", title="examples in memory", axis=alt.Axis(labelAngle=0, grid=False)),
        alt.XOffset("method:N", sort=methods),
        color=alt.Color("method:N", title=None, scale=colours, legend=below),
    )
    spread = base.mark_rule(strokeWidth=1.5).encode(
        alt.Y("low:Q", title=title, scale=alt.Scale(zero=False)), alt.Y2("high:Q")
    )
    points = base.mark_point(filled=True, size=45, opacity=1).encode(
        alt.Y("mean:Q", title=title), shape=alt.Shape("method:N", title=None, scale=shapes, legend=below)
    )
    theirs = base.mark_tick(thickness=2, size=13).encode(alt.Y("published:Q", title=title), color=alt.value(INK))
    stars = base.mark_text(dy=-5, fontSize=15).encode(
        alt.Y("high:Q", title=title), text="marks:N", color=alt.value(INK)
    )
    whole = spread + theirs + points + stars
    return whole.properties(width=230, height=190, title=panel_title(records[0]["benchmark"]))
