"""The commands that compute again what a report shows, to be given where its files are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from gmed.data.custom import is_data_path
from gmed.engine import RunResult, RunSpec
from gmed.engine.benchmark_id import BenchmarkId
from gmed.report.grouping import by_method
from gmed.results.formatting import to_cli_args
from gmed.results.tuning import Scores


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
    benchmark, asked = runs[0].benchmark, is_prequential(runs)
    model = BenchmarkId.parse(benchmark).model
    if model is not None and not model.has_import_path:
        return [f"# {benchmark}: its model was handed over in Python, as a module; gmed.run(..., model=...) runs it"]
    return [
        shlex.join(
            [
                *("gmed", "run", *to_cli_args(benchmark, *methods), "--seeds", _seeds(seeds), *asked),
                *(*extension_options([(benchmark, method) for method in methods]), "--store", store),
            ]
        )
        for seeds, methods in alike.items()
    ]


def is_prequential(runs: Iterable[RunResult]) -> list[str]:
    """The option that the runs were computed with, if they were."""
    return ["--prequential"] if all(run.prequential is not None for run in runs) else []


def tune_commands(benchmark: str, found: dict[str, Scores], store: str) -> list[str]:
    """What tries again the hyper-parameters that were tried."""
    return [
        shlex.join(
            [
                *("gmed", "tune", *to_cli_args(benchmark, method), "--seeds", str(grid.seeds)),
                *(*extension_options([(benchmark, method)]), "--store", store),
            ]
        )
        for method, grid in found.items()
    ]


def report_command(
    runs: Sequence[RunResult], benchmark: str | None, methods: Sequence[str], store: str, *, gallery: bool
) -> str:
    """What makes the report again, of everything in the store or of what was chosen.

    >>> report_command([], "data/wine.csv", ["er"], "gmed.db", gallery=True)
    'gmed report wine.csv er --gallery --store gmed.db'
    """
    chosen = [Path(benchmark).name if is_data_path(benchmark) else benchmark, *methods] if benchmark else []
    asked = ["--gallery"] if gallery else []
    needed = extension_options([(run.benchmark, run.method) for run in runs])
    return shlex.join(["gmed", "report", *chosen, *asked, *needed, "--store", store])


def extension_options(named: Iterable[tuple[str, str]]) -> list[str]:
    """The options that load the files which methods, each on a benchmark, are defined in.

    >>> extension_options([("split-mnist", "er+gmed")])
    []
    """
    sources = (
        source
        for benchmark, method in dict.fromkeys(named)
        for source in RunSpec.parse(benchmark, method, 0).method.sources()
    )
    files = dict.fromkeys(source.name for source in sources if source.folder is None)
    return [word for file in files for word in ("--extension", file)]


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
