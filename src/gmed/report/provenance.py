"""Provenance of results: environments and settings of the runs, and the commands that repeat them.

The commands are to be run in the folder of their files.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gmed.data.custom import is_data_path
from gmed.engine import RunResult, RunSpec
from gmed.engine.benchmarks import BenchmarkId
from gmed.report.grouping import by_method
from gmed.results import Results
from gmed.results.formatting import to_cli_args
from gmed.results.tuning import Scores, grid_options, read_grid

PARTS = ("gmed", "python", "torch", "numpy", "device", "machine")


def environments(runs: Sequence[RunResult]) -> list[tuple[dict[str, str], int]]:
    """Return the environments of the runs, each with its number of runs, the most frequent first.

    >>> run = lambda seed: RunResult("b", "er", seed, [[1.0]], 1.0, 1.0, 1, {}, {"torch": "2.13", "device": "cpu"})
    >>> environments([run(0), run(1)])
    [({'torch': '2.13', 'device': 'cpu'}, 2)]
    """
    counts = Counter(tuple((name, run.environment[name]) for name in PARTS if name in run.environment) for run in runs)
    return [(dict(environment), count) for environment, count in counts.most_common()]


def settings(benchmark: str, method: str) -> str:
    """Return everything that determines a run except its seed, as text.

    >>> print(settings("split-mnist", "er").splitlines()[0])
    batch_size = 10
    """
    spec = RunSpec.parse(benchmark, method, 0)
    config = spec.config()
    parts = [(name, config[name]) for name in sorted(config) if name not in ("benchmark", "method")]
    parts += [(f"method.{part}", values) for part, values in config["method"].items()]
    parts.append(("versions", spec.versions()))
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in parts)


def run_commands(runs: Sequence[RunResult], store: str) -> list[str]:
    """Return the commands that repeat the runs of one benchmark, one for all methods with the same seeds.

    >>> run = lambda method, seed: RunResult("split-mnist", method, seed, [[1.0]], 1.0, 1.0, 1, {}, {})
    >>> runs = [run("er", 0), run("er", 1), run("er+gmed(alpha=1.0)", 0), run("er+gmed(alpha=1.0)", 1), run("mir", 7)]
    >>> for line in run_commands(runs, "gmed.db"):
    ...     print(line)
    gmed run split-mnist er 'er+gmed(alpha=1.0)' --seeds 2 --store gmed.db
    gmed run split-mnist mir --seeds 7, --store gmed.db
    """
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for method, method_runs in by_method(runs).items():
        by_seeds.setdefault(tuple(sorted(run.seed for run in method_runs)), []).append(method)
    benchmark = runs[0].benchmark
    options = ["--prequential"] if all(run.prequential is not None for run in runs) else []
    model = BenchmarkId.parse(benchmark).model
    if model is not None and not model.has_import_path:
        return [f"# {benchmark}: its model was passed in Python, as a module; rerun it with gmed.run(..., model=...)"]
    return [
        shlex.join(
            [
                *("gmed", "run", *to_cli_args(benchmark, *methods), "--seeds", _seeds(seeds), *options),
                *(*extension_options([(benchmark, method) for method in methods]), "--store", store),
            ]
        )
        for seeds, methods in by_seeds.items()
    ]


def tune_commands(benchmark: str, tuned: dict[str, Scores], store: str) -> list[str]:
    """Return the commands that repeat the hyper-parameter tuning."""
    return [
        shlex.join(
            [
                *("gmed", "tune", *to_cli_args(benchmark, method), "--seeds", str(grid.seeds)),
                *_grid_options(method, grid),
                *(*extension_options([(benchmark, method)]), "--store", store),
            ]
        )
        for method, grid in tuned.items()
    ]


def _grid_options(method: str, grid: Scores) -> list[str]:
    """Return the options for a grid that is not the paper's."""
    tried = dict(zip(grid.parameters, map(tuple, map(dict.fromkeys, zip(*grid.means, strict=True))), strict=True))
    return [] if tried == read_grid(method, None) else grid_options(tried)


def report_command(
    results: Results, benchmark: str | None, methods: Sequence[str], store: str, *, gallery: bool
) -> str:
    """Return the command that creates the report again, of the whole store or of the selection.

    >>> report_command(Results(baseline="er"), "data/wine.csv", ["er", "mir"], "gmed.db", gallery=True)
    'gmed report wine.csv er mir --baseline er --gallery --store gmed.db'
    """
    selection = [Path(benchmark).name if is_data_path(benchmark) else benchmark, *methods] if benchmark else []
    options = [*(["--baseline", results.baseline] if results.baseline else []), *(["--gallery"] if gallery else [])]
    extensions = extension_options([(run.benchmark, run.method) for run in results.runs])
    return shlex.join(["gmed", "report", *selection, *options, *extensions, "--store", store])


def extension_options(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the options that load the files in which these methods are defined.

    >>> extension_options([("split-mnist", "er+gmed")])
    []
    """
    sources = (
        source
        for benchmark, method in dict.fromkeys(pairs)
        for source in RunSpec.parse(benchmark, method, 0).method.sources()
    )
    files = dict.fromkeys(source.name for source in sources if source.folder is None)
    return [arg for file in files for arg in ("--extension", file)]


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
