"""The tables of accuracies, of accuracies at equal memory, and of training times."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gmed.engine import RunResult
from gmed.paper import quantities
from gmed.paper.artifacts.base import Artifact, ArtifactResult, Measurement, Request, reproduce_table
from gmed.paper.catalog import PaperTable
from gmed.paper.plan import PAPER_BENCHMARKS, PlannedRuns, compute
from gmed.paper.tables import Reproduction, planned
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
        return reproduce_table(self.name, request)


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
            column = EVALUATED_AS.get(cell.benchmark, cell.benchmark)
            published, *_ = self.published(column, "memory overhead in examples", cell.row)
            overhead = [m.overhead for m in metrics]
            result.numbers += [
                Measurement.of(cell.benchmark, f"memory of {cell.method}, in examples", overhead, published),
                Measurement.of(cell.benchmark, f"memory of {cell.method}, in MB", [m.overhead_mb for m in metrics]),
            ]
        result.notes.append("In examples: counted as in the paper, one byte per pixel. In MB: the actual size.")
        return result


TIMED_METHODS = {"er": "ER", "er+gmed": "ER+GMED"}


class TrainingTime(Artifact):
    """The recorded training times of ER and ER+GMED, and their ratio."""

    name = "training-time"
    title = "seconds of training, with and without GMED"
    location = "Appendix, training time"
    require_all: ClassVar[bool] = True

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, method) for benchmark in PAPER_BENCHMARKS for method in TIMED_METHODS]

    def run(self, request: Request) -> ArtifactResult:
        selection = self.select_runs(request)
        results = compute(selection.planned, request.callback, **request.options)
        result = ArtifactResult(self, request.quick, missing=selection.missing, failures=results.failures)
        (overall,) = (number.value for number in quantities() if number.quantity == "run time ratio")
        for benchmark in selection.benchmarks:
            result.numbers += self.numbers([run for run in results.runs if run.benchmark == benchmark])
        machines = {f"{run.environment['machine']}, {run.environment['device']}" for run in results.runs}
        result.notes += [
            f"Measured on {' and on '.join(sorted(machines))}, alone or concurrently with other runs; the paper: on a "
            "GTX 1080 Ti or 2080 Ti. Data loading, evaluation and checkpoints are excluded.",
            f"Ratios are paired by seed, on the same device. Section 4.5 of the paper: {overall:g} times as long.",
        ]
        if any(int(run.environment.get("replicas", 1)) > 1 for run in results.runs):
            result.notes.append("Seeds that were trained together on a GPU each count with their share of the time.")
        return result

    def numbers(self, runs: list[RunResult]) -> list[Measurement]:
        """Return the seconds and the ratio on one benchmark, from all runs of both methods there."""
        seconds: dict[str, dict[tuple[int, str], float]] = {method: {} for method in TIMED_METHODS}
        for run in runs:
            seconds[run.method][run.seed, run.environment["device"]] = run.timings["train"]
        if not all(seconds.values()):
            return []
        benchmark = runs[0].benchmark
        published = {method: self.published(benchmark, "seconds", row)[0] for method, row in TIMED_METHODS.items()}
        numbers = [
            replace(
                Measurement.of(benchmark, f"seconds of {method}", list(by_run.values()), published[method]),
                difference=None,
            )
            for method, by_run in seconds.items()
        ]
        er, edited = seconds.values()
        if ratios := [edited[key] / er[key] for key in er if key in edited]:
            numbers.append(Measurement.of(benchmark, "ratio", ratios, published["er+gmed"] / published["er"]))
        return numbers
