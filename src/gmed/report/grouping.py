"""Grouping of runs by benchmark and method, and short titles of benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gmed.engine import METHODS, BenchmarkId, RunResult
from gmed.engine.methods import parse
from gmed.results import Results


def titles(names: Sequence[str]) -> dict[str, str]:
    """Return a short title for each benchmark: its file and model, and the details that distinguish it from others.

    >>> for title in titles([
    ...     "split-mnist",
    ...     "split-mnist[model=net.py:small,0123456789ab]",
    ...     "split-mnist[model=net.py:small(width=8),0123456789ab]",
    ...     "wine.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]",
    ...     "wine.csv[label=kind,by-time=3,3 tasks,4->3,0123456789ab]",
    ...     "wine.csv[label=kind,drop=id,by-time=3,3 tasks,3->3,0123456789ab]",
    ...     "iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]-fuzzy",
    ...     "rows.csv[name=my wines,label=kind,by-class,2 tasks,4->3,0123456789ab]",
    ... ]).values():
    ...     print(title)
    split-mnist
    split-mnist · net.py:small
    split-mnist · net.py:small · (width=8)
    wine.csv · by-class
    wine.csv · by-time=3
    wine.csv · by-time=3 · without id
    iris.csv-fuzzy
    my wines
    >>> twice = ["wine.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]"] * 2
    >>> [*titles([*twice, "wine.csv[label=kind,by-time=3,3 tasks,4->3,0123456789ab]"]).values()]
    ['wine.csv · by-class', 'wine.csv · by-time=3']
    """
    names = list(dict.fromkeys(names))
    title_parts = {name: [_short_name(name)] for name in names}
    details = {name: _details(name) for name in names}
    for index in range(max(map(len, details.values()), default=0)):
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            groups.setdefault(tuple(title_parts[name]), []).append(name)
        for group in groups.values():
            if len({details[name][index] for name in group}) > 1:
                for name in group:
                    title_parts[name] += filter(None, [details[name][index]])
    return {name: " · ".join(parts) for name, parts in title_parts.items()}


def _short_name(name: str) -> str:
    benchmark = BenchmarkId.parse(name)
    custom_data, model = benchmark.custom_data, benchmark.model
    base = replace(
        benchmark, base=(custom_data.title or custom_data.file) if custom_data else benchmark.base, model=None
    )
    return str(base) + (f" · {model.reference.partition('(')[0]}" if model else "")


def _details(name: str) -> tuple[str, ...]:
    """Return the remaining parts of a name, the most informative first."""
    benchmark = BenchmarkId.parse(name)
    custom_data, model = benchmark.custom_data, benchmark.model
    return (
        custom_data.split if custom_data else "",
        f"label {custom_data.label}" if custom_data and custom_data.label else "",
        f"without {', '.join(custom_data.drop)}" if custom_data and custom_data.drop else "",
        "".join(model.reference.partition("(")[1:]) if model else "",
        f"data {custom_data.digest}" if custom_data else "",
        f"model {model.digest}" if model else "",
    )


MethodRuns = Mapping[str, Sequence[RunResult]]
"""The runs of each method on one benchmark."""

MAX_SERIES = 8
"""Number of methods that one chart shows at once: as many as there are color-blind safe colors."""

DEFAULT_METHODS = ("er", "er+gmed", "mir", "mir+gmed")
"""The methods that are shown by default."""


def without_tuning(results: Results) -> Results:
    """Return the results without runs of hyper-parameter tuning, finished or failed."""
    runs = [run for run in results.runs if not BenchmarkId.parse(run.benchmark).tuning]
    failures = [failure for failure in results.failures if not BenchmarkId.parse(failure.benchmark).tuning]
    return replace(results, runs=runs, failures=failures)


def by_benchmark(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Return the runs of each benchmark, in order of first appearance."""
    return {name: [run for run in runs if run.benchmark == name] for name in dict.fromkeys(r.benchmark for r in runs)}


def by_method(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Return the runs of each method, in order of first appearance."""
    return {name: [run for run in runs if run.method == name] for name in dict.fromkeys(run.method for run in runs)}


def first_choice(methods: Iterable[str]) -> list[str]:
    """Return the methods that a chart shows first: the default methods, or else the first ones."""
    available = list(methods)
    return ([method for method in available if method in DEFAULT_METHODS] or available)[:MAX_SERIES]


def has_memory(method: str) -> bool:
    """Return whether a method stores examples.

    >>> has_memory("er(memory=50)+gmed"), has_memory("finetune")
    (True, False)
    """
    return METHODS[parse(method)[0].name].memory is not None


def is_iid_baseline(method: str) -> bool:
    """Return whether a method receives the stream in shuffled order.

    >>> is_iid_baseline("iid-offline(passes=3)"), is_iid_baseline("er+gmed")
    (True, False)
    """
    return METHODS[parse(method)[0].name].order is not None


def sets_only_memory(method: str) -> bool:
    """Return whether a method has the benchmark's default for every parameter but the memory size.

    >>> sets_only_memory("er(memory=50)+gmed"), sets_only_memory("er+gmed"), sets_only_memory("er+gmed(alpha=1.0)")
    (True, True, False)
    """
    return all(part.parameters.keys() <= {"memory"} for part in parse(method))


def edits_with_gmed(method: str) -> bool:
    """Return whether a method edits with GMED.

    >>> edits_with_gmed("er(memory=50)+gmed(alpha=1.0)"), edits_with_gmed("er+adv-edit"), edits_with_gmed("er")
    (True, False, False)
    """
    return any(part.name == "gmed" for part in parse(method)[1:])
