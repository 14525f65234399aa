"""The table of hyper-parameters chosen on held-out examples, as a heat map."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from gmed.engine.benchmarks import BenchmarkId, tuning_name
from gmed.errors import UsageError, unknown
from gmed.experiment import default_store
from gmed.paper.artifacts.base import ArtifactResult, Figure, Measurement, Request
from gmed.paper.artifacts.charts import Record, data, heat_map, panel_title, seed_counts, split_by
from gmed.paper.plan import PAPER_BENCHMARKS, PlannedRuns, compute
from gmed.results import Store
from gmed.results.tuning import GRIDS, Scores, candidates, scores

ROWS = {"er+gmed": "er+gmed, mir+gmed, gem+gmed", "er-aug+gmed": "er-aug+gmed"}
SEEDS = 5
"""The default number of seeds of ``gmed tune``."""

X_AXIS, Y_AXIS = ("alpha", "editing stride α"), ("beta", "regularization β")
"""The tuned parameters with their titles."""


def _tuned_benchmark(name: str) -> str:
    return str(BenchmarkId.parse(name).variant())


class Tuned(Figure):
    """The hyper-parameters that ``gmed tune`` chooses, as a heat map; missing candidates are run."""

    name = "tuned"
    title = "alpha and beta that gmed tune chooses"
    location = "Table 6"
    require_all: ClassVar[bool] = True

    def plan(self) -> list[PlannedRuns]:
        return [
            PlannedRuns(tuning_name(benchmark), candidate, SEEDS)
            for benchmark in PAPER_BENCHMARKS
            for method in ROWS
            for candidate in candidates(benchmark, method).values()
        ]

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        for name in request.benchmarks:
            if name not in PAPER_BENCHMARKS:
                raise unknown(f"column of {self.location}:", name, PAPER_BENCHMARKS)
        if request.options.get("store", "") is None:
            raise UsageError(f"{self.name} stores its runs; a store is required")
        selection = self.select_runs(replace(request, benchmarks=[tuning_name(name) for name in request.benchmarks]))
        results = compute(selection.planned, request.callback, **request.options)
        missing = {_tuned_benchmark(name): reason for name, reason in selection.missing.items()}
        result = ArtifactResult(self, request.quick, missing=missing, failures=results.failures)
        records: list[Record] = []
        with Store(request.options.get("store") or default_store()) as store:
            for benchmark in map(_tuned_benchmark, selection.benchmarks):
                for method, row in ROWS.items():
                    try:
                        grid = scores(store, benchmark, method, GRIDS["gmed"])
                    except UsageError as error:  # a candidate failed at every seed
                        result.notes.append(str(error))
                        continue
                    reported = {name: self.published(benchmark, name, row)[0] for name in GRIDS["gmed"]}
                    for record in records_of({method: grid}):
                        published = all(record[name] == value for name, value in reported.items())
                        records.append({"benchmark": benchmark, **record, "n": grid.seeds, "published": published})
                        if record["best"]:
                            result.numbers += [
                                Measurement(benchmark, f"{name} of {method}", grid.seeds, record[name], math.nan, value)
                                for name, value in reported.items()
                            ]
        result.notes.append("The best of the paper's grid on held-out examples of the first three tasks; n: seeds.")
        return result, records

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        rows = []
        for benchmark_records in split_by(records, "benchmark").values():
            panels = map(_panel, split_by(benchmark_records, "method").values())
            rows.append(alt.hconcat(*panels, spacing=24).resolve_scale(color="independent"))
        return alt.vconcat(*rows).resolve_scale(color="independent")

    def legend(self, records: list[Record]) -> list[str]:
        return [
            f"held-out accuracy of the first three tasks in %, means over {seed_counts(records)} seeds",
            "circle: chosen (the smallest of ties); square: published",
        ]


def records_of(tuned: Mapping[str, Scores]) -> list[Record]:
    """Return a record for each point of the grid of every method.

    >>> records_of({"er+gmed": Scores({(0.1, 0.0): 80.0, (1.0, 0.0): 82.0}, 3, ("alpha", "beta"))})[1]
    {'method': 'er+gmed', 'alpha': 1.0, 'beta': 0.0, 'score': 82.0, 'best': True}
    """
    records: list[Record] = []
    for method, grid in tuned.items():
        best = max(grid.means, key=lambda point: grid.means[point])
        for point, score in grid.means.items():
            alpha, beta = point
            records.append({"method": method, "alpha": alpha, "beta": beta, "score": score, "best": point == best})
    return records


def _panel(records: list[Record]) -> Any:
    import altair as alt

    lowest, highest = (extreme(record["score"] for record in records) for extreme in (min, max))
    chart = heat_map(
        data(records),
        X_AXIS,
        Y_AXIS,
        ("score", ""),
        alt.Scale(scheme="viridis", domain=[lowest, highest]),
        number=".1f",
        white=f"datum.score < {lowest + 0.6 * (highest - lowest)}",
        rings={"published": "square", "best": "circle"},
    )
    title = panel_title(f"{records[0]['benchmark']}, {records[0]['method']}")
    return chart.properties(width=330, height=190, title=title)
