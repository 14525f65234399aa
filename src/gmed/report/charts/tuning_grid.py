from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gmed.engine.benchmark_id import BenchmarkId, tuning_name
from gmed.engine.grammar import Component
from gmed.engine.methods import parse
from gmed.errors import UsageError
from gmed.paper.artifacts.charts import heat_map
from gmed.paper.artifacts.tuned import ACROSS, DOWN, records_of
from gmed.report.charts.chart import GROUND, Chart, Choice, rows, tooltip
from gmed.report.grouping import edits_with_gmed
from gmed.results import Store
from gmed.results.tuning import GRIDS, Scores, scores


def tuning_scores(store: Store, benchmark: str) -> dict[str, Scores]:
    """What ``gmed tune`` found of alpha and beta on a benchmark, for every method that was tuned there."""
    found = {}
    for method in dict.fromkeys(tuned_base(run.method) for run in store.runs(tuning_name(benchmark))):
        with suppress(UsageError):  # it was not tuned to the end
            grid = scores(store, benchmark, method)
            if edits_with_gmed(method) and all(len(point) == 2 for point in grid.means):
                found[method] = grid
    return found


def tuned_base(candidate: str) -> str:
    """The method that a candidate is one of.

    >>> tuned_base("er(memory=50)+gmed(alpha=0.1,beta=0.0)")
    'er(memory=50)+gmed'
    >>> tuned_base("er+gmed(steps=3,alpha=0.1,beta=0.0)")
    'er+gmed(steps=3)'
    """
    *before, edit = parse(candidate)
    given = {name: value for name, value in edit.parameters.items() if name not in GRIDS.get(edit.name, ())}
    return "+".join(map(str, (*before, Component(edit.name, given))))


def tuned_benchmarks(names: Iterable[str]) -> list[str]:
    """The benchmarks whose tuning is among these.

    >>> tuned_benchmarks(["split-mnist", "split-mnist-tuning"])
    ['split-mnist']
    """
    return [str(found.variant()) for found in map(BenchmarkId.parse, names) if found.tuning]


def tuning_grid(found: dict[str, Scores], place: str) -> Chart | None:
    """Held-out accuracy over alpha and beta."""
    if not found:
        return None
    import altair as alt

    drawn = heat_map(
        rows(),
        ACROSS,
        DOWN,
        ("score", "held-out %"),
        alt.Scale(scheme="viridis", zero=False),
        rings={"best": "circle"},
        gap=GROUND,
        tooltip=tooltip(
            [("method:N", "method"), ("alpha:O", "α"), ("beta:O", "β"), ("score:Q", "held-out accuracy, %")]
        ),
    )
    seeds = sorted({grid.seeds for grid in found.values()})
    return Chart(
        f"{place}-tuning",
        "α and β",
        f"Accuracy on held-out examples of the first three tasks, means over {' or '.join(map(str, seeds))} seeds "
        "(gmed tune); the circle is what was chosen.",
        drawn.properties(width="container", height=220),
        records_of(found),
        Choice("method", list(found), [next(iter(found))]),
    )
