"""The commands that compute again what a report shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from gmed.engine import RunResult
from gmed.report.runs import by_method
from gmed.results.tuning import Scores
from gmed.results.wording import as_typed


def run_commands(runs: Sequence[RunResult], store: str) -> list[str]:
    """What computes the runs of one benchmark: a line for all methods that have the same seeds.

    >>> run = lambda method, seed: RunResult("split-mnist", method, seed, [[1.0]], 1.0, 1.0, 1, {}, {})
    >>> runs = [run("er", 0), run("er", 1), run("er+gmed(alpha=1.0)", 0), run("er+gmed(alpha=1.0)", 1), run("mir", 7)]
    >>> for line in run_commands(runs, "gmed.db"):
    ...     print(line)
    gmed run split-mnist er 'er+gmed(alpha=1.0)' --seeds 2 --store gmed.db
    gmed run split-mnist mir --seeds 7, --store gmed.db
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for method, own in by_method(runs).items():
        alike.setdefault(tuple(sorted(run.seed for run in own)), []).append(method)
    asked = prequential_asked(runs)
    return [
        _line("gmed", "run", *as_typed(runs[0].benchmark, *methods), "--seeds", _seeds(seeds), *asked, "--store", store)
        for seeds, methods in alike.items()
    ]


def prequential_asked(runs: Iterable[RunResult]) -> list[str]:
    """The option that the runs were computed with, if they were."""
    return ["--prequential"] if all(run.prequential is not None for run in runs) else []


def tune_commands(benchmark: str, found: dict[str, Scores], store: str) -> list[str]:
    """What tries again the hyper-parameters that were tried."""
    return [
        _line("gmed", "tune", *as_typed(benchmark, method), "--seeds", str(grid.seeds), "--store", store)
        for method, grid in found.items()
    ]


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")


def _line(*words: str) -> str:
    return shlex.join(words)
