"""The runs of one benchmark, method by method, and what benchmarks are called where there is little room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gmed.engine import METHODS, BenchmarkId, RunResult
from gmed.engine.methods import parse
from gmed.results import Results


def titles(names: Sequence[str]) -> dict[str, str]:
    """A short title for each benchmark: its file and its model, and of the rest what tells it from the others here.

    >>> for title in titles([
    ...     "split-mnist",
    ...     "split-mnist[model=net.py:small,0123456789ab]",
    ...     "split-mnist[model=net.py:small(width=8),0123456789ab]",
    ...     "wine.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]",
    ...     "wine.csv[label=kind,by-time=3,3 tasks,4->3,0123456789ab]",
    ...     "wine.csv[label=kind,drop=id,by-time=3,3 tasks,3->3,0123456789ab]",
    ...     "iris.csv[label=kind,by-class,2 tasks,4->3,0123456789ab]-fuzzy",
    ... ]).values():
    ...     print(title)
    split-mnist
    split-mnist · net.py:small
    split-mnist · net.py:small · (width=8)
    wine.csv · by-class
    wine.csv · by-time=3
    wine.csv · by-time=3 · without id
    iris.csv-fuzzy
    """
    said = {name: [_always(name)] for name in names}
    details = {name: _details(name) for name in names}
    for place in range(max(map(len, details.values()), default=0)):
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            alike.setdefault(tuple(said[name]), []).append(name)
        for group in alike.values():
            if len({details[name][place] for name in group}) > 1:
                for name in group:
                    said[name] += filter(None, [details[name][place]])
    return {name: " · ".join(parts) for name, parts in said.items()}


def _always(name: str) -> str:
    benchmark = BenchmarkId.parse(name)
    own, model = benchmark.custom_data, benchmark.model
    base = replace(benchmark, base=own.file if own else benchmark.base, model=None)
    return str(base) + (f" · {model.reference.partition('(')[0]}" if model else "")


def _details(name: str) -> tuple[str, ...]:
    """What else a name says, the more telling first."""
    benchmark = BenchmarkId.parse(name)
    own, model = benchmark.custom_data, benchmark.model
    return (
        own.split if own else "",
        f"label {own.label}" if own and own.label else "",
        f"without {', '.join(own.drop)}" if own and own.drop else "",
        "".join(model.reference.partition("(")[1:]) if model else "",
        f"data {own.digest}" if own else "",
        f"model {model.digest}" if model else "",
    )


MAX_SERIES = 8
"""Methods that one chart shows at once: as many as there are colours that all readers tell apart."""

DEFAULT_METHODS = ("er", "er+gmed", "mir", "mir+gmed")
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
    known = [method for method in there if method in DEFAULT_METHODS]
    return (known or there)[:MAX_SERIES]


def has_memory(method: str) -> bool:
    """Whether a method stores examples.

    >>> has_memory("er(memory=50)+gmed"), has_memory("finetune")
    (True, False)
    """
    return METHODS[parse(method)[0].name].memory is not None


def is_iid_baseline(method: str) -> bool:
    """Whether a method meets the stream in another order than it comes in.

    >>> is_iid_baseline("iid-offline(passes=3)"), is_iid_baseline("er+gmed")
    (True, False)
    """
    return METHODS[parse(method)[0].name].order is not None


def edits_with_gmed(method: str) -> bool:
    """Whether a method edits with GMED.

    >>> edits_with_gmed("er(memory=50)+gmed(alpha=1.0)"), edits_with_gmed("er+adv-edit"), edits_with_gmed("er")
    (True, False, False)
    """
    return any(part.name == "gmed" for part in parse(method)[1:])
