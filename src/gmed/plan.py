"""The runs that a table or figure of the paper needs: planned, chosen as somebody asks for them, and computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gmed.engine import BENCHMARKS, RunSpec, get_benchmark, resolve
from gmed.errors import UsageError, unknown
from gmed.experiment import Experiment, Watcher
from gmed.results import Results, Store

USUAL_SEEDS = 20
"""How many, where the paper does not say."""

SIX = ("split-mnist", "permuted-mnist", "rotated-mnist", "split-cifar10", "split-cifar100", "split-mini-imagenet")
"""The benchmarks that most of the paper is about."""

SMALL_VERSION = "A SMALL VERSION, three seeds at most: it shows that everything runs, and says nothing about the paper."
"""Printed with whatever is of so few seeds that it decides nothing."""

QUICK_SEEDS = 3
QUICK_BENCHMARKS = ("split-mnist", "split-mnist-fuzzy", "split-mnist-full", "rotated-mnist")
"""Where a small version looks first; the whole column follows from none of it."""

TOO_SLOW = "cn-dpm"
"""Which takes minutes a run, and is left out of a small version."""


class Planned(NamedTuple):
    """A method on a benchmark, and at how many seeds."""

    benchmark: str
    method: str
    seeds: int = USUAL_SEEDS

    def specs(self) -> list[RunSpec]:
        """The runs.

        >>> [str(spec) for spec in Planned("split-mnist", "er+gmed(alpha=5.0)", 2).specs()]
        ['split-mnist er+gmed seed 0', 'split-mnist er+gmed seed 1']
        """
        benchmark = get_benchmark(self.benchmark)
        method = resolve(benchmark, self.method)
        return [RunSpec(benchmark, method, seed) for seed in range(self.seeds)]


class Chosen(NamedTuple):
    """What of a plan is computed, and for every benchmark or method that is left out the reason."""

    planned: list[Planned]
    missing: dict[str, str]

    @property
    def benchmarks(self) -> list[str]:
        """Those that are computed, in the order of the plan."""
        return list(dict.fromkeys(one.benchmark for one in self.planned))


def choose(
    plan: Iterable[Planned],
    where: str,
    *,
    benchmarks: Sequence[str] = (),
    seeds: int | None = None,
    quick: bool = False,
    data_dir: str | Path | None = None,
    store: str | Path | None = None,
    observed: str = "",
) -> Chosen:
    """Of a plan, the benchmarks that are wanted and can be computed, at as many seeds as are asked for.

    A benchmark can be computed if its data are here, or if the store has all runs of it, or what was ``observed``.

    >>> plan = [Planned("split-mnist", "er"), Planned("rotated-mnist", "er", 10)]
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
    missing = {name: why for name in wanted if (why := BENCHMARKS[name].data_problem(folder))}
    for name in _all_stored(plan, list(missing), store, observed):
        del missing[name]
    if benchmarks and missing:
        raise UsageError(next(iter(missing.values())))
    here = [name for name in wanted if name not in missing]
    if not here:
        raise UsageError(f"{where}: the data of none of its columns are here; gmed data says how to get them")
    if quick and not benchmarks:
        here, missing = [next((name for name in QUICK_BENCHMARKS if name in here), here[0])], {}
    chosen = [one for one in plan if one.benchmark in here]
    if quick and any(one.method == TOO_SLOW for one in chosen):
        chosen = [one for one in chosen if one.method != TOO_SLOW]
        missing[TOO_SLOW] = "takes minutes a run, and is not in the small version"
    return Chosen(chosen, missing)


def _all_stored(
    plan: Sequence[Planned], benchmarks: Sequence[str], store: str | Path | None, observed: str
) -> list[str]:
    """Those of the benchmarks whose planned runs are all in the store."""
    if not benchmarks or store is None or not Path(store).exists():
        return []
    with Store(store) as opened:
        kept = opened.keys(observed)
    lacking = {
        one.benchmark for one in plan if one.benchmark in benchmarks and not {spec.key for spec in one.specs()} <= kept
    }
    return [name for name in benchmarks if name not in lacking]


def compute(planned: Iterable[Planned], watcher: Callable[[], Watcher] = Watcher, **how: Any) -> Results:
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
