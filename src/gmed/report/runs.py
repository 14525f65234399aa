"""The runs of one benchmark, method by method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gmed.engine import METHODS, BenchmarkId, RunResult
from gmed.engine.methods import parse
from gmed.results import Results

AT_ONCE = 8
"""Methods that one chart shows at once: as many as there are colours that all readers tell apart."""

KNOWN_FIRST = ("er", "er+gmed", "mir", "mir+gmed")
"""What is shown before a reader has chosen."""


def without_tuning(results: Results) -> Results:
    """The results but for the runs that hyper-parameters were chosen by, finished or failed."""
    runs = [run for run in results.runs if not BenchmarkId.parse(run.benchmark).tuning]
    failures = [failure for failure in results.failures if not BenchmarkId.parse(failure.benchmark).tuning]
    return replace(results, runs=runs, failures=failures)


def by_benchmark(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """The runs of each benchmark, in the order they came."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(run.benchmark, []).append(run)
    return found


def by_method(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """The runs of each method, in the order they came."""
    found: dict[str, list[RunResult]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(run)
    return found


def first_choice(runs: Sequence[RunResult]) -> list[str]:
    """The methods that a chart begins with: those that are known best, else the first."""
    there = list(by_method(runs))
    known = [method for method in there if method in KNOWN_FIRST]
    return (known or there)[:AT_ONCE]


def has_memory(method: str) -> bool:
    """Whether a method stores examples.

    >>> has_memory("er(memory=50)+gmed"), has_memory("finetune")
    (True, False)
    """
    return METHODS[parse(method)[0].name].memory is not None


def shuffles(method: str) -> bool:
    """Whether a method meets the stream in another order than it comes in.

    >>> shuffles("iid-offline(passes=3)"), shuffles("er+gmed")
    (True, False)
    """
    return METHODS[parse(method)[0].name].order is not None


def edits_with_gmed(method: str) -> bool:
    """Whether a method edits with GMED.

    >>> edits_with_gmed("er(memory=50)+gmed(alpha=1.0)"), edits_with_gmed("er+adv-edit"), edits_with_gmed("er")
    (True, False, False)
    """
    return any(part.name == "gmed" for part in parse(method)[1:])
