"""The runs that a table or figure of the paper needs: planned, chosen as somebody asks for them, and computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmed.callbacks import Watcher
from gmed.engine import BENCHMARKS, RunSpec, get_benchmark, resolve
from gmed.errors import UsageError, unknown
from gmed.experiment import Experiment
from gmed.results import Results, Store

DEFAULT_SEEDS = 20
"""How many, where the paper does not say."""

PAPER_BENCHMARKS = (
    "split-mnist",
    "permuted-mnist",
    "rotated-mnist",
    "split-cifar10",
    "split-cifar100",
    "split-mini-imagenet",
)
"""The benchmarks that most of the paper is about."""

QUICK_WARNING = "A SMALL VERSION, three seeds at most: it shows that everything runs, and says nothing about the paper."
"""Printed with whatever is of so few seeds that it decides nothing."""

QUICK_SEEDS = 3
QUICK_BENCHMARKS = ("split-mnist", "split-mnist-fuzzy", "split-mnist-full", "rotated-mnist")
"""Where a small version looks first; the whole column follows from none of it."""

SLOW_METHODS = "cn-dpm"
"""Which takes minutes a run, and is left out of a small version."""


class PlannedRuns(NamedTuple):
    """A method on a benchmark, and at how many seeds."""

    benchmark: str
    method: str
    seeds: int = DEFAULT_SEEDS

    def specs(self) -> list[RunSpec]:
        """The runs.

        >>> [str(spec) for spec in PlannedRuns("split-mnist", "er+gmed(alpha=5.0)", 2).specs()]
        ['split-mnist er+gmed seed 0', 'split-mnist er+gmed seed 1']
        """
        benchmark = get_benchmark(self.benchmark)
        method = resolve(benchmark, self.method)
        return [RunSpec(benchmark, method, seed) for seed in range(self.seeds)]


class Selection(NamedTuple):
    """What of a plan is computed, and for every benchmark or method that is left out the reason."""

    planned: list[PlannedRuns]
    missing: dict[str, str]

    @property
    def benchmarks(self) -> list[str]:
        """Those that are computed, in the order of the plan."""
        return list(dict.fromkeys(one.benchmark for one in self.planned))


def choose(
    plan: Iterable[PlannedRuns],
    where: str,
    *,
    benchmarks: Sequence[str] = (),
    seeds: int | None = None,
    quick: bool = False,
    data_dir: str | Path | None = None,
    store: str | Path | None = None,
    observed: str = "",
    whole: bool = False,
) -> Selection:
    """Of a plan, the benchmarks that are wanted and can be computed, at as many seeds as are asked for.

    A benchmark can be computed if its data are here; else those of its methods of which the store has all runs, or what
    was ``observed`` of them, are shown, or with ``whole`` all of its methods or none.

    >>> plan = [PlannedRuns("split-mnist", "er"), PlannedRuns("rotated-mnist", "er", 10)]
    >>> choose(plan, "Table 0", benchmarks=["rotated-mnist"]).planned
    [Planned(benchmark='rotated-mnist', method='er', seeds=10)]
    >>> choose(plan, "Table 0", quick=True).planned
    [Planned(benchmark='split-mnist', method='er', seeds=3)]
    """
    count = seeds or (QUICK_SEEDS if quick else None)
    plan = [one._replace(seeds=count or one.seeds) for one in plan]
    columns = list(dict.fromkeys(one.benchmark for one in plan))
    for name in benchmarks:
        if name not in columns:
            raise unknown(f"column of {where}:", name, columns)
    folder = Path(data_dir) if data_dir else None
    wanted = [name for name in columns if name in benchmarks or not benchmarks]
    missing = {name: why for name in wanted if (why := BENCHMARKS[name].missing_data(folder))}
    stored = _stored([one for one in plan if one.benchmark in missing], store, observed)
    if whole:
        partly = {one.benchmark for one in plan if one.benchmark in missing and one not in stored}
        stored = [one for one in stored if one.benchmark not in partly]
    if benchmarks and (nothing := missing.keys() - {one.benchmark for one in stored}):
        raise UsageError(missing[min(nothing)])
    lacking = [one for one in plan if one.benchmark in missing and one not in stored]
    plan = [one for one in plan if one not in lacking]
    for name in dict.fromkeys(one.benchmark for one in stored):
        why, methods = missing.pop(name), [one.method for one in lacking if one.benchmark == name]
        if methods:
            missing[f"{name} {', '.join(methods)}"] = why
    here = [name for name in wanted if any(one.benchmark == name for one in plan)]
    if not here:
        raise UsageError(f"{where}: the data of none of its columns are here; gmed data says how to get them")
    if quick and not benchmarks:
        here = [next((name for name in QUICK_BENCHMARKS if name in here), here[0])]
        missing = {name: why for name, why in missing.items() if name.startswith(f"{here[0]} ")}
    chosen = [one for one in plan if one.benchmark in here]
    if quick and any(one.method == SLOW_METHODS for one in chosen):
        chosen = [one for one in chosen if one.method != SLOW_METHODS]
        missing[SLOW_METHODS] = "takes minutes a run, and is not in the small version"
    return Selection(chosen, missing)


def _stored(plan: Sequence[PlannedRuns], store: str | Path | None, observed: str) -> list[PlannedRuns]:
    """Those of which the store has all runs, or what was observed of all."""
    if not plan or store is None or not Path(store).exists():
        return []
    with Store(store) as opened:
        kept = opened.keys(observed)
    return [one for one in plan if {spec.key for spec in one.specs()} <= kept]


def compute(planned: Iterable[PlannedRuns], watcher: Callable[[], Watcher] = Watcher, **how: Any) -> Results:
    """The runs, from the store as far as it has them; ``how`` as in :func:`gmed.run`."""
    groups: dict[tuple[str, int], list[str]] = {}
    for benchmark, method, seeds in planned:
        methods = groups.setdefault((benchmark, seeds), [])
        if method not in methods:
            methods.append(method)
    results = Results()
    for (benchmark, seeds), methods in groups.items():
        found = Experiment(benchmark, methods, seeds, **how).run(watcher=watcher())
        results.runs += found.runs
        results.failures += found.failures
        results.store = found.store
    return results
