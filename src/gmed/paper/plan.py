"""The runs that a table or figure of the paper needs: planning, selecting and executing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmed.callbacks import Callback
from gmed.engine import BENCHMARKS, RunSpec, get_benchmark, resolve
from gmed.errors import UsageError, unknown
from gmed.experiment import Experiment
from gmed.results import Results, Store

DEFAULT_SEEDS = 20
"""Number of seeds if the paper gives none."""

PAPER_BENCHMARKS = (
    "split-mnist",
    "permuted-mnist",
    "rotated-mnist",
    "split-cifar10",
    "split-cifar100",
    "split-mini-imagenet",
)
"""The benchmarks of most of the paper's experiments."""

QUICK_WARNING = "A SMOKE TEST with at most three seeds: it shows that everything runs, but allows no conclusions."
"""Printed with results of too few seeds for a conclusion."""

QUICK_SEEDS = 3
QUICK_BENCHMARKS = ("split-mnist", "split-mnist-fuzzy", "split-mnist-full", "rotated-mnist")
"""The benchmarks of a quick version, of which the first available one is used."""

SLOW_METHODS = "cn-dpm"
"""The method that takes minutes per run, and is skipped in a quick version."""


class PlannedRuns(NamedTuple):
    """A method on a benchmark, with a number of seeds."""

    benchmark: str
    method: str
    seeds: int = DEFAULT_SEEDS

    def specs(self) -> list[RunSpec]:
        """Return the specification of every run.

        >>> [str(spec) for spec in PlannedRuns("split-mnist", "er+gmed(alpha=5.0)", 2).specs()]
        ['split-mnist er+gmed seed 0', 'split-mnist er+gmed seed 1']
        """
        benchmark = get_benchmark(self.benchmark)
        method = resolve(benchmark, self.method)
        return [RunSpec(benchmark, method, seed) for seed in range(self.seeds)]


class Selection(NamedTuple):
    """The selected part of a plan, and the reason for every benchmark or method that is left out."""

    planned: list[PlannedRuns]
    missing: dict[str, str]

    @property
    def benchmarks(self) -> list[str]:
        """The selected benchmarks, in the order of the plan."""
        return list(dict.fromkeys(item.benchmark for item in self.planned))


def select_runs(
    plan: Iterable[PlannedRuns],
    label: str,
    *,
    benchmarks: Sequence[str] = (),
    seeds: int | None = None,
    quick: bool = False,
    data_dir: str | Path | None = None,
    store: str | Path | None = None,
    observed: str = "",
    require_all: bool = False,
) -> Selection:
    """Select the requested benchmarks of a plan that can be run, with the requested number of seeds.

    A benchmark can be run if its data are available. Otherwise the methods of which the store has all runs, or all
    observations of kind ``observed``, are selected; with ``require_all``, either all methods of a benchmark or none.

    >>> plan = [PlannedRuns("split-mnist", "er"), PlannedRuns("rotated-mnist", "er", 10)]
    >>> select_runs(plan, "Table 0", benchmarks=["rotated-mnist"]).planned
    [PlannedRuns(benchmark='rotated-mnist', method='er', seeds=10)]
    >>> select_runs(plan, "Table 0", quick=True).planned
    [PlannedRuns(benchmark='split-mnist', method='er', seeds=3)]
    """
    count = seeds or (QUICK_SEEDS if quick else None)
    plan = [item._replace(seeds=count or item.seeds) for item in plan]
    benchmark_names = list(dict.fromkeys(item.benchmark for item in plan))
    for name in benchmarks:
        if name not in benchmark_names:
            raise unknown(f"column of {label}:", name, benchmark_names)
    data_folder = Path(data_dir) if data_dir else None
    requested = [name for name in benchmark_names if name in benchmarks or not benchmarks]
    missing = {name: reason for name in requested if (reason := BENCHMARKS[name].missing_data(data_folder))}
    stored = _select_stored([item for item in plan if item.benchmark in missing], store, observed)
    if require_all:
        incomplete = {item.benchmark for item in plan if item.benchmark in missing and item not in stored}
        stored = [item for item in stored if item.benchmark not in incomplete]
    if benchmarks and (absent := missing.keys() - {item.benchmark for item in stored}):
        raise UsageError(missing[min(absent)])
    unavailable = [item for item in plan if item.benchmark in missing and item not in stored]
    plan = [item for item in plan if item not in unavailable]
    for name in dict.fromkeys(item.benchmark for item in stored):
        reason, methods = missing.pop(name), [item.method for item in unavailable if item.benchmark == name]
        if methods:
            missing[f"{name} {', '.join(methods)}"] = reason
    available = [name for name in requested if any(item.benchmark == name for item in plan)]
    if not available:
        raise UsageError(f"{label}: the data sets of all its columns are missing; run gmed data to see how to get them")
    if quick and not benchmarks:
        available = [next((name for name in QUICK_BENCHMARKS if name in available), available[0])]
        missing = {name: reason for name, reason in missing.items() if name.startswith(f"{available[0]} ")}
    selected = [item for item in plan if item.benchmark in available]
    if quick and any(item.method == SLOW_METHODS for item in selected):
        selected = [item for item in selected if item.method != SLOW_METHODS]
        missing[SLOW_METHODS] = "takes minutes per run, so it is skipped with --quick"
    return Selection(selected, missing)


def _select_stored(plan: Sequence[PlannedRuns], store: str | Path | None, observed: str) -> list[PlannedRuns]:
    """Return the items of which the store has all runs, or all observations."""
    if not plan or store is None or not Path(store).exists():
        return []
    with Store(store) as results_store:
        keys = results_store.keys(observed)
    return [item for item in plan if {spec.key for spec in item.specs()} <= keys]


def compute(planned: Iterable[PlannedRuns], callback: Callable[[], Callback] = Callback, **options: Any) -> Results:
    """Return the runs, after executing those that the store lacks; ``options`` as in :func:`gmed.run`."""
    groups: dict[tuple[str, int], list[str]] = {}
    for benchmark, method, seeds in planned:
        methods = groups.setdefault((benchmark, seeds), [])
        if method not in methods:
            methods.append(method)
    results = Results()
    for (benchmark, seeds), methods in groups.items():
        computed = Experiment(benchmark, methods, seeds, **options).run(callback=callback())
        results.runs += computed.runs
        results.failures += computed.failures
        results.store = computed.store
    return results
