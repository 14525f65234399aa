"""The heat map of tuning scores over alpha and beta."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gmed.engine.benchmarks import BenchmarkId, tuning_name
from gmed.engine.grammar import Component
from gmed.engine.methods import parse
from gmed.errors import UsageError
from gmed.paper.artifacts.charts import heat_map
from gmed.paper.artifacts.tuned import X_AXIS, Y_AXIS, records_of
from gmed.report.charts.chart import GROUND, Chart, Choice, rows, tooltip
from gmed.report.grouping import edits_with_gmed
from gmed.results import Store
from gmed.results.tuning import GRIDS, Scores, scores


def tuning_scores(store: Store, benchmark: str) -> dict[str, Scores]:
    """Return the scores of alpha and beta on a benchmark for every method that was tuned there."""
    tuned = {}
    for method in dict.fromkeys(tuned_base(run.method) for run in store.runs(tuning_name(benchmark))):
        with suppress(UsageError):  # its tuning is incomplete
            grid = scores(store, benchmark, method)
            if edits_with_gmed(method) and grid.parameters == ("alpha", "beta"):
                tuned[method] = grid
    return tuned


def tuned_base(candidate: str) -> str:
    """Return the method that a candidate belongs to.

    >>> tuned_base("er(memory=50)+gmed(alpha=0.1,beta=0.0)")
    'er(memory=50)+gmed'
    >>> tuned_base("er+gmed(steps=3,alpha=0.1,beta=0.0)")
    'er+gmed(steps=3)'
    """
    *before, edit = parse(candidate)
    fixed = {name: value for name, value in edit.parameters.items() if name not in GRIDS.get(edit.name, ())}
    return "+".join(map(str, (*before, Component(edit.name, fixed))))


def tuned_benchmarks(names: Iterable[str]) -> list[str]:
    """Return the benchmarks of those names that are tuning benchmarks.

    >>> tuned_benchmarks(["split-mnist", "split-mnist-tuning"])
    ['split-mnist']
    """
    return [str(benchmark.variant()) for benchmark in map(BenchmarkId.parse, names) if benchmark.tuning]


def tuning_grid(tuned: dict[str, Scores]) -> Chart | None:
    """Return the chart of held-out accuracy over alpha and beta."""
    if not tuned:
        return None
    import altair as alt

    chart = heat_map(
        rows(),
        X_AXIS,
        Y_AXIS,
        ("score", "held-out %"),
        alt.Scale(scheme="viridis", zero=False),
        rings={"best": "circle"},
        gap=GROUND,
        tooltip=tooltip(
            [("method:N", "method"), ("alpha:O", "α"), ("beta:O", "β"), ("score:Q", "held-out accuracy, %")]
        ),
    )
    seeds = sorted({grid.seeds for grid in tuned.values()})
    return Chart(
        "tuning",
        "α and β",
        f"Accuracy on held-out examples of the first three tasks, means over {' or '.join(map(str, seeds))} seeds "
        "(gmed tune); circle: the chosen values.",
        chart.properties(width="container", height=220),
        records_of(tuned),
        Choice.one_of("method", tuned, ()),
    )
