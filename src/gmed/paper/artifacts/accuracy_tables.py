"""The tables of accuracies, and the comparison at equal memory."""

from __future__ import annotations

from gmed.paper.artifacts.base import Artifact, ArtifactResult, Number, Request
from gmed.paper.catalog import Target
from gmed.paper.plan import PlannedRuns
from gmed.paper.tables import Reproduction, planned, reproduce
from gmed.results.metrics import Metrics


class AccuracyTable(Artifact):
    """A table of accuracies.

    >>> from gmed.paper.catalog import get_target
    >>> AccuracyTable(get_target("gss")).where
    'Table 17'
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name, self.title, self.where = target.name, target.title, target.table

    def plan(self) -> list[PlannedRuns]:
        return planned(self.target)

    def run(self, asked: Request) -> Reproduction:
        return reproduce(
            self.name,
            benchmarks=asked.benchmarks,
            seeds=asked.seeds,
            quick=asked.quick,
            watcher=asked.watcher,
            **asked.how,
        )


EVALUATED_AS = {"split-mnist-full": "split-mnist"}
"""Columns of ours that are another reading of one of the paper's."""


class EqualMemory(AccuracyTable):
    """Networks that grow and replay with as much memory: accuracies, and the memory that each took."""

    def run(self, asked: Request) -> ArtifactResult:  # type: ignore[override]
        table = super().run(asked)
        found = ArtifactResult(self, asked.quick, table=table, missing=table.missing, failures=table.failures)
        for row in table.rows:
            cell = row.cell
            runs = [run for run in table.results.runs if (run.benchmark, run.method) == (cell.benchmark, cell.method)]
            metrics = [Metrics.of(run) for run in runs]
            theirs, *_ = self.published(
                EVALUATED_AS.get(cell.benchmark, cell.benchmark), "memory overhead in examples", cell.row
            )
            taken = [one.overhead for one in metrics]
            found.numbers += [
                Number.of(cell.benchmark, f"memory of {cell.method}, in examples", taken, theirs),
                Number.of(cell.benchmark, f"memory of {cell.method}, in MB", [one.overhead_mb for one in metrics]),
            ]
        found.notes.append("In examples: as the paper counts, a pixel being one byte. In MB: what it takes here.")
        return found
