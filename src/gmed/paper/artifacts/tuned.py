"""The hyper-parameters chosen on held-out examples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from gmed.engine.benchmark_id import BenchmarkId, tuning_name
from gmed.errors import UsageError, unknown
from gmed.experiment import default_store
from gmed.paper.artifacts.base import ArtifactResult, Figure, Number, Request
from gmed.paper.artifacts.charts import Record, data, heat_map, panel_title
from gmed.paper.plan import PAPER_BENCHMARKS, PlannedRuns, compute
from gmed.results import Store
from gmed.results.tuning import GRIDS, Scores, candidates, scores

ROWS = {"er+gmed": "er+gmed, mir+gmed, gem+gmed", "er-aug+gmed": "er-aug+gmed"}
SEEDS = 5
"""At which ``gmed tune`` tries every candidate unless told otherwise."""

ACROSS, DOWN = ("alpha", "editing stride α"), ("beta", "regularisation β")
"""What is tuned, with its title."""


def _tuned_benchmark(name: str) -> str:
    return str(BenchmarkId.parse(name).variant())


class Tuned(Figure):
    """The hyper-parameters that ``gmed tune`` chooses, as a heat map: it tries what the store does not have yet."""

    name = "tuned"
    title = "alpha and beta that gmed tune chooses"
    where = "Table 6"
    whole: ClassVar[bool] = True

    def plan(self) -> list[PlannedRuns]:
        return [
            PlannedRuns(tuning_name(benchmark), candidate, SEEDS)
            for benchmark in PAPER_BENCHMARKS
            for method in ROWS
            for candidate in candidates(benchmark, method).values()
        ]

    def find(self, asked: Request) -> tuple[ArtifactResult, list[Record]]:
        for name in asked.benchmarks:
            if name not in PAPER_BENCHMARKS:
                raise unknown(f"column of {self.where}:", name, PAPER_BENCHMARKS)
        if asked.how.get("store", "") is None:
            raise UsageError(f"{self.name} keeps what it tries in a store; give one")
        chosen = self.chosen(replace(asked, benchmarks=[tuning_name(name) for name in asked.benchmarks]))
        results = compute(chosen.planned, asked.watcher, **asked.how)
        missing = {_tuned_benchmark(name): why for name, why in chosen.missing.items()}
        found, records = ArtifactResult(self, asked.quick, missing=missing, failures=results.failures), list[Record]()
        with Store(asked.how.get("store") or default_store()) as store:
            for benchmark in map(_tuned_benchmark, chosen.benchmarks):
                for method, row in ROWS.items():
                    try:
                        grid = scores(store, benchmark, method)
                    except UsageError as error:  # a candidate failed at every seed
                        found.notes.append(str(error))
                        continue
                    theirs = {name: self.published(benchmark, name, row)[0] for name in GRIDS["gmed"]}
                    for record in records_of({method: grid}):
                        published = all(record[name] == value for name, value in theirs.items())
                        records.append({"benchmark": benchmark, **record, "n": grid.seeds, "published": published})
                        if record["best"]:
                            found.numbers += [
                                Number(benchmark, f"{name} of {method}", grid.seeds, record[name], math.nan, value)
                                for name, value in theirs.items()
                            ]
        found.notes.append("The best of the paper's grid on held-out examples of the first three tasks; n: seeds.")
        return found, records

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        rows = []
        for benchmark in dict.fromkeys(record["benchmark"] for record in records):
            own = [record for record in records if record["benchmark"] == benchmark]
            methods = dict.fromkeys(record["method"] for record in own)
            panels = [_panel([record for record in own if record["method"] == method]) for method in methods]
            rows.append(alt.hconcat(*panels, spacing=24).resolve_scale(color="independent"))
        return alt.vconcat(*rows).resolve_scale(color="independent")

    def legend(self, records: list[Record]) -> list[str]:
        seeds = sorted({record["n"] for record in records})
        return [
            f"held-out accuracy of the first three tasks in %, means over {' or '.join(map(str, seeds))} seeds",
            "circle: chosen (of ties the smallest); square: published",
        ]


def records_of(found: Mapping[str, Scores]) -> list[Record]:
    """A record for each point of the grid of every method.

    >>> records_of({"er+gmed": Scores({(0.1, 0.0): 80.0, (1.0, 0.0): 82.0}, 3)})[1]
    {'method': 'er+gmed', 'alpha': 1.0, 'beta': 0.0, 'score': 82.0, 'best': True}
    """
    records: list[Record] = []
    for method, grid in found.items():
        best = max(grid.means, key=lambda point: grid.means[point])
        for point, score in grid.means.items():
            alpha, beta = point
            records.append({"method": method, "alpha": alpha, "beta": beta, "score": score, "best": point == best})
    return records


def _panel(records: list[Record]) -> Any:
    import altair as alt

    lowest, highest = (pick(record["score"] for record in records) for pick in (min, max))
    drawn = heat_map(
        data(records),
        ACROSS,
        DOWN,
        ("score", ""),
        alt.Scale(scheme="viridis", domain=[lowest, highest]),
        number=".1f",
        white=f"datum.score < {lowest + 0.6 * (highest - lowest)}",
        rings={"published": "square", "best": "circle"},
    )
    title = panel_title(f"{records[0]['benchmark']}, {records[0]['method']}")
    return drawn.properties(width=330, height=190, title=title)
