"""What benchmarks are called where there is little room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gmed.engine import BenchmarkId


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
    own, model = benchmark.own_data, benchmark.model
    base = replace(benchmark, base=own.file if own else benchmark.base, model=None)
    return str(base) + (f" · {model.reference.partition('(')[0]}" if model else "")


def _details(name: str) -> tuple[str, ...]:
    """What else a name says, the more telling first."""
    benchmark = BenchmarkId.parse(name)
    own, model = benchmark.own_data, benchmark.model
    return (
        own.split if own else "",
        f"label {own.label}" if own and own.label else "",
        f"without {', '.join(own.drop)}" if own and own.drop else "",
        "".join(model.reference.partition("(")[1:]) if model else "",
        f"data {own.digest}" if own else "",
        f"model {model.digest}" if model else "",
    )
