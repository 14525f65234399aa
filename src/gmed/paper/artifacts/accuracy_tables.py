"""The tables of accuracies, and the comparison at equal memory."""

from __future__ import annotations

from gmed.paper.artifacts.base import Artifact, ArtifactResult, Measurement, Request
from gmed.paper.catalog import PaperTable
from gmed.paper.plan import PlannedRuns
from gmed.paper.tables import Reproduction, planned, reproduce
from gmed.results.metrics import Metrics


class AccuracyTable(Artifact):
    """A table of accuracies.

    >>> from gmed.paper.catalog import get_target
    >>> AccuracyTable(get_target("gss")).location
    'Table 17'
    """

    def __init__(self, target: PaperTable) -> None:
        self.target = target
        self.name, self.title, self.location = target.name, target.title, target.table

    def plan(self) -> list[PlannedRuns]:
        return planned(self.target)

    def run(self, request: Request) -> Reproduction:
        return reproduce(
            self.name,
            benchmarks=request.benchmarks,
            seeds=request.seeds,
            quick=request.quick,
            callback=request.callback,
            **request.options,
        )


EVALUATED_AS = {"split-mnist-full": "split-mnist"}
"""Benchmarks of this package that are variants of a column of the paper, with that column."""


class EqualMemory(AccuracyTable):
    """Growing networks and replay with equal memory: accuracies, and the memory used by each."""

    def run(self, request: Request) -> ArtifactResult:  # type: ignore[override]
        table = super().run(request)
        result = ArtifactResult(self, request.quick, table=table, missing=table.missing, failures=table.failures)
        for row in table.rows:
            cell = row.cell
            runs = [run for run in table.results.runs if (run.benchmark, run.method) == (cell.benchmark, cell.method)]
            metrics = [Metrics.of(run) for run in runs]
            published, *_ = self.published(
                EVALUATED_AS.get(cell.benchmark, cell.benchmark), "memory overhead in examples", cell.row
            )
            overhead = [m.overhead for m in metrics]
            result.numbers += [
                Measurement.of(cell.benchmark, f"memory of {cell.method}, in examples", overhead, published),
                Measurement.of(cell.benchmark, f"memory of {cell.method}, in MB", [m.overhead_mb for m in metrics]),
            ]
        result.notes.append("In examples: counted as in the paper, one byte per pixel. In MB: the actual size.")
        return result
