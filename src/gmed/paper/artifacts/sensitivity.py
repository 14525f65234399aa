"""Accuracy over the hyper-parameters of the edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gmed.engine import get_benchmark, resolve
from gmed.paper.artifacts.base import ArtifactResult, Figure, Number, Request
from gmed.paper.artifacts.charts import COLORS, GREY, INK, Record, data, gain_columns, panel_title
from gmed.paper.plan import PlannedRuns, compute
from gmed.paper.published import published
from gmed.results import Results
from gmed.results.comparisons import Comparison, compare
from gmed.results.tuning import GRIDS

BENCHMARKS = ("split-mnist", "split-cifar10", "split-mini-imagenet")
SYMBOLS = {"alpha": "editing stride α", "beta": "regularisation β"}


class Sensitivity(Figure):
    """Accuracy against one hyper-parameter of GMED while the other stays as it was tuned."""

    name = "sensitivity"
    title = "accuracy against alpha and against beta"
    where = "Figure 5"

    def plan(self) -> list[PlannedRuns]:
        return [
            PlannedRuns(benchmark, method)
            for benchmark in BENCHMARKS
            for method in dict.fromkeys(["er", *(name for _, _, name in grid(benchmark))])
        ]

    def find(self, asked: Request) -> tuple[ArtifactResult, list[Record]]:
        chosen = self.chosen(asked)
        results = compute(chosen.planned, asked.watcher, **asked.how)
        found = ArtifactResult(self, asked.quick, missing=chosen.missing, failures=results.failures)
        for benchmark, method, _ in chosen.planned:
            if percent := _percent(results, benchmark, method):
                theirs = published(benchmark, method)
                beside = (theirs.mean, theirs.std, theirs.n) if theirs else ()
                found.numbers.append(Number.of(benchmark, method, percent, *beside))
        pairs = [(benchmark, method, "er") for benchmark, method, _ in chosen.planned if method != "er"]
        found.comparisons = compare(results, pairs, levels=())
        found.notes.append("Final accuracy in %. The paper gives no numbers for its figure; beside ours is Table 1.")
        return found, [
            record for benchmark in chosen.benchmarks for record in records_of(results, benchmark, found.comparisons)
        ]

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        rows = []
        for benchmark in dict.fromkeys(record["benchmark"] for record in records):
            own = [record for record in records if record["benchmark"] == benchmark]
            ends = [record[end] for record in own for end in ("low", "high")]
            down = alt.Scale(domain=[min(ends), max(ends)], nice=True, zero=False)
            rows.append(alt.hconcat(*(_panel(own, parameter, down) for parameter in SYMBOLS), spacing=24))
        return alt.vconcat(*rows)

    def legend(self, records: list[Record]) -> list[str]:
        seeds = sorted({record["n"] for record in records})
        return [
            f"ER+GMED: mean ± standard deviation, n = {' or '.join(map(str, seeds))} seeds; filled: the tuned value",
            "dashed: ER; black line: published at the tuned value (Table 1)",
        ]


def grid(benchmark: str) -> list[tuple[str, float, str]]:
    """The parameter, its value and the method, for every point of the figure.

    >>> [method for parameter, value, method in grid("split-mnist") if parameter == "beta"][:3]
    ['er+gmed(beta=0.0)', 'er+gmed(beta=0.001)', 'er+gmed']
    """
    made = get_benchmark(benchmark)
    return [
        (parameter, value, resolve(made, f"er+gmed({parameter}={value})").name)
        for parameter in SYMBOLS
        for value in GRIDS["gmed"][parameter]
    ]


def records_of(results: Results, benchmark: str, comparisons: Iterable[Comparison]) -> list[Record]:
    """What is drawn of one benchmark, a record for each point that has runs."""
    er, records = _percent(results, benchmark, "er"), []
    compared_with_er = {c.method: c for c in comparisons if c.benchmark == benchmark}
    for parameter, value, method in grid(benchmark):
        if percent := _percent(results, benchmark, method):
            mean, reach = float(np.mean(percent)), float(np.std(percent, ddof=1)) if len(percent) > 1 else 0.0
            tuned = method == "er+gmed"
            beside = compared_with_er.get(method)
            theirs = published(benchmark, method) if tuned else None
            records.append(
                {
                    "benchmark": benchmark,
                    "parameter": parameter,
                    "value": value,
                    "n": len(percent),
                    "mean": mean,
                    "low": mean - reach,
                    "high": mean + reach,
                    "tuned": tuned,
                    "er": float(np.mean(er)) if er else None,
                    **gain_columns(beside),
                    "published": theirs.mean if theirs else None,
                }
            )
    return records


def _percent(results: Results, benchmark: str, method: str) -> list[float]:
    return [100 * accuracy for accuracy in results.accuracies(benchmark, method).values()]


def _panel(records: list[Record], parameter: str, down: Any) -> Any:
    import altair as alt

    own = [record for record in records if record["parameter"] == parameter]
    title, colour = "final accuracy, %", COLORS["er+gmed"]
    across = alt.X("value:O", title=SYMBOLS[parameter], axis=alt.Axis(labelAngle=0, grid=False), sort=None)
    base = alt.Chart(data(own)).encode(across)
    mean = alt.Y("mean:Q", title=title, scale=down)
    spread = base.mark_rule(color=colour).encode(alt.Y("low:Q", title=title), alt.Y2("high:Q"))
    line = base.mark_line(color=colour, strokeWidth=1.5).encode(mean)
    fill = alt.condition("datum.tuned", alt.value(colour), alt.value("white"))
    points = base.mark_point(color=colour, size=55, opacity=1, strokeWidth=1.5).encode(mean, fill=fill)
    theirs = (
        base.transform_filter("datum.tuned")
        .mark_tick(color=INK, thickness=2, size=16)
        .encode(alt.Y("published:Q", title=title))
    )
    er = (
        alt.Chart(data(own[:1]))
        .mark_rule(strokeDash=[5, 4], color=GREY, strokeWidth=1.5)
        .encode(alt.Y("er:Q", title=title))
    )
    return (er + spread + line + theirs + points).properties(
        width=300, height=190, title=panel_title(own[0]["benchmark"])
    )
