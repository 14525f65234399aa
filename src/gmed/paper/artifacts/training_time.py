"""The table of training times."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gmed.engine import RunResult
from gmed.paper import quantities
from gmed.paper.artifacts.base import Artifact, ArtifactResult, Number, Request
from gmed.paper.plan import PAPER_BENCHMARKS, PlannedRuns, compute

ROWS = {"er": "ER", "er+gmed": "ER+GMED"}


class TrainingTime(Artifact):
    """How long ER and ER+GMED train, as the runs recorded it, and how many times as long editing takes."""

    name = "training-time"
    title = "seconds of training, with and without GMED"
    where = "Appendix, training time"
    whole: ClassVar[bool] = True

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, method) for benchmark in PAPER_BENCHMARKS for method in ROWS]

    def run(self, asked: Request) -> ArtifactResult:
        chosen = self.chosen(asked)
        results = compute(chosen.planned, asked.watcher, **asked.how)
        found = ArtifactResult(self, asked.quick, missing=chosen.missing, failures=results.failures)
        (overall,) = (number.value for number in quantities() if number.quantity == "run time ratio")
        for benchmark in chosen.benchmarks:
            found.numbers += self.numbers([run for run in results.runs if run.benchmark == benchmark])
        places = {f"{run.environment['machine']}, {run.environment['device']}" for run in results.runs}
        found.notes += [
            f"Ours: on {' and on '.join(sorted(places))}, alone or beside other runs; the paper's: on a GTX 1080 Ti "
            "or 2080 Ti. Without data, evaluation and checkpoints.",
            f"Ratios are paired by seed, on the same device. Section 4.5 of the paper: {overall:g} times as long.",
        ]
        if any(int(run.environment.get("replicas", 1)) > 1 for run in results.runs):
            found.notes.append("Seeds that advanced together on a GPU have each their share of the time.")
        return found

    def numbers(self, runs: list[RunResult]) -> list[Number]:
        """Seconds and ratio on one benchmark, from all runs of both methods there."""
        seconds: dict[str, dict[tuple[int, str], float]] = {method: {} for method in ROWS}
        for run in runs:
            seconds[run.method][run.seed, run.environment["device"]] = run.timings["train"]
        if not all(seconds.values()):
            return []
        benchmark = runs[0].benchmark
        theirs = {method: self.published(benchmark, "seconds", row)[0] for method, row in ROWS.items()}
        numbers = [
            replace(Number.of(benchmark, f"seconds of {method}", list(found.values()), theirs[method]), difference=None)
            for method, found in seconds.items()
        ]
        er, edited = seconds.values()
        if ratios := [edited[pair] / er[pair] for pair in er.keys() & edited.keys()]:
            numbers.append(Number.of(benchmark, "ratio", ratios, theirs["er+gmed"] / theirs["er"]))
        return numbers
