"""The table of training times."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gmed.engine import RunResult
from gmed.paper import quantities
from gmed.paper.artifacts.base import Artifact, ArtifactResult, Measurement, Request
from gmed.paper.plan import PAPER_BENCHMARKS, PlannedRuns, compute

ROWS = {"er": "ER", "er+gmed": "ER+GMED"}


class TrainingTime(Artifact):
    """The recorded training times of ER and ER+GMED, and their ratio."""

    name = "training-time"
    title = "seconds of training, with and without GMED"
    location = "Appendix, training time"
    require_all: ClassVar[bool] = True

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, method) for benchmark in PAPER_BENCHMARKS for method in ROWS]

    def run(self, request: Request) -> ArtifactResult:
        selection = self.select_runs(request)
        results = compute(selection.planned, request.callback, **request.options)
        result = ArtifactResult(self, request.quick, missing=selection.missing, failures=results.failures)
        (overall,) = (number.value for number in quantities() if number.quantity == "run time ratio")
        for benchmark in selection.benchmarks:
            result.numbers += self.numbers([run for run in results.runs if run.benchmark == benchmark])
        machines = {f"{run.environment['machine']}, {run.environment['device']}" for run in results.runs}
        result.notes += [
            f"Ours: on {' and on '.join(sorted(machines))}, alone or concurrently with other runs; the paper's: on a "
            "GTX 1080 Ti or 2080 Ti. Data loading, evaluation and checkpoints are excluded.",
            f"Ratios are paired by seed, on the same device. Section 4.5 of the paper: {overall:g} times as long.",
        ]
        if any(int(run.environment.get("replicas", 1)) > 1 for run in results.runs):
            result.notes.append("For seeds that were trained together on a GPU, each has its share of the time.")
        return result

    def numbers(self, runs: list[RunResult]) -> list[Measurement]:
        """Return the seconds and the ratio on one benchmark, from all runs of both methods there."""
        seconds: dict[str, dict[tuple[int, str], float]] = {method: {} for method in ROWS}
        for run in runs:
            seconds[run.method][run.seed, run.environment["device"]] = run.timings["train"]
        if not all(seconds.values()):
            return []
        benchmark = runs[0].benchmark
        published = {method: self.published(benchmark, "seconds", row)[0] for method, row in ROWS.items()}
        numbers = [
            replace(
                Measurement.of(benchmark, f"seconds of {method}", list(by_run.values()), published[method]),
                difference=None,
            )
            for method, by_run in seconds.items()
        ]
        er, edited = seconds.values()
        if ratios := [edited[key] / er[key] for key in er.keys() & edited.keys()]:
            numbers.append(Measurement.of(benchmark, "ratio", ratios, published["er+gmed"] / published["er"]))
        return numbers
