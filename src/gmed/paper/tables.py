"""A table of the paper, computed anew: ours beside the published numbers, with the comparisons the paper makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from gmed.callbacks import Watcher
from gmed.experiment import default_store
from gmed.paper import Cell, quantities
from gmed.paper.catalog import Target, get_target
from gmed.paper.plan import DEFAULT_SEEDS, PlannedRuns, choose, compute
from gmed.paper.published import PREVIOUS_BEST, table
from gmed.results import Difference, Failure, Results, difference
from gmed.results.comparisons import Comparison, compare
from gmed.results.results import finite

Pair = tuple[str, str, str]
"""A benchmark, a method and its rival."""


@dataclass(frozen=True)
class TableRow:
    """A cell of the paper, and what came out here; accuracies in percent."""

    cell: Cell
    n: int
    mean: float
    std: float
    difference: Difference


@dataclass
class Reproduction:
    """A table of the paper beside ours.

    Attributes
    ----------
    missing
        Benchmarks of the table, or methods, that were left out, and why.
    quick
        Whether it is the small version, which decides nothing.
    best
        On each benchmark the best edited method against the previous best, corrected for their number alone. Where
        our means choose the two, the difference is flattered by the choice.
    """

    target: Target
    rows: list[TableRow]
    comparisons: list[Comparison]
    results: Results
    missing: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    best: list[Comparison] = field(default_factory=list)

    @property
    def failures(self) -> list[Failure]:
        """Runs that did not finish."""
        return self.results.failures

    def to_dict(self) -> dict[str, Any]:
        """As JSON can carry it."""
        return {
            "schema": "gmed-reproduction/1",
            "target": asdict(self.target),
            "quick": self.quick,
            "missing": self.missing,
            "rows": [finite(asdict(row)) for row in self.rows],
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
            "best": [comparison.to_dict() for comparison in self.best],
            "failures": [asdict(failure) for failure in self.failures],
        }


def reproduce(
    target: str,
    *,
    benchmarks: Sequence[str] = (),
    seeds: int | None = None,
    quick: bool = False,
    watcher: Callable[[], Watcher] = Watcher,
    **how: Any,
) -> Reproduction:
    """Compute what a table of the paper needs and the store lacks, and set it beside the published numbers.

    Parameters
    ----------
    target
        Its name, as ``gmed reproduce --list`` shows it.
    benchmarks
        Only these columns; by default all whose data are here.
    seeds
        How many; by default as many as the paper's.
    quick
        The small version: three seeds, one column. It shows that all runs, and says nothing about the paper.
    watcher
        Makes what is told of the progress on each benchmark.
    how
        ``store``, ``device``, ``workers``, ``data_dir`` and so on, as in :func:`gmed.run`.

    Examples
    --------
    >>> found = reproduce("er-t", benchmarks=["split-mnist"], seeds=1, store=None, workers=0)
    >>> [(row.cell.method, row.n) for row in found.rows]
    [('er-t', 1), ('er-t+gmed', 1)]
    """
    made = get_target(target)
    chosen = choose(
        planned(made),
        made.table,
        benchmarks=benchmarks,
        seeds=seeds,
        quick=quick,
        data_dir=how.get("data_dir"),
        store=how.get("store", default_store()),
    )
    results = compute(chosen.planned, watcher, **how)
    columns = {name: [cell for cell in made.cells() if cell.benchmark == name] for name in chosen.benchmarks}
    return assemble(made, columns, results, chosen.missing, quick)


def planned(target: Target) -> list[PlannedRuns]:
    """The runs that a table needs.

    >>> planned(get_target("gss"))[0]
    Planned(benchmark='split-mnist', method='gss', seeds=20)
    """
    return [PlannedRuns(cell.benchmark, cell.method, cell.published.n or DEFAULT_SEEDS) for cell in target.cells()]


def assemble(
    target: Target,
    columns: dict[str, list[Cell]],
    results: Results,
    missing: dict[str, str] | None = None,
    quick: bool = False,
) -> Reproduction:
    """The table and its comparisons, from results that are there."""
    levels = () if quick else target.levels
    rows: list[TableRow] = []
    pairs: dict[Pair, str | None] = {}
    chosen: dict[Pair, dict[str, Any]] = {}
    for benchmark, cells in columns.items():
        for cell in cells:
            percent = _percent(results, benchmark, cell.method)
            if percent:
                rows.append(_ours(cell, list(percent.values())))
                if rival := target.rival(benchmark, cell.method):
                    pairs[benchmark, cell.method, rival] = cell.published.marks
        if target.best:
            chosen |= _best(target, benchmark, cells, results)
        for method, rival in _extra_pairs(
            target, [cell for cell in cells if _percent(results, benchmark, cell.method)]
        ):
            pairs.setdefault((benchmark, method, rival), None)
    comparisons = [
        replace(c, published_marks=pairs[c.benchmark, c.method, c.rival], **_published(target, c))
        for c in compare(results, pairs, levels)
    ]
    best = [
        replace(c, marks=c.marks and "†", **_published(target, c) | chosen[c.benchmark, c.method, c.rival])
        for c in compare(results, chosen, levels)
    ]
    return Reproduction(target, rows, comparisons, results, missing or {}, quick, best)


def _published(target: Target, c: Comparison) -> dict[str, Any]:
    """What the table prints of a comparison: the difference of its means, and its p-value."""
    means = {cell.method: cell.published.mean for cell in target.cells() if cell.benchmark == c.benchmark}
    apart = round(means[c.method] - means[c.rival], 2) if c.method in means and c.rival in means else None
    printed = (q.value for q in quantities() if (q.where, q.row, q.benchmark) == (target.table, "p-value", c.benchmark))
    return {"published_gain": apart, "published_p": next(printed, None)}


def _percent(results: Results, benchmark: str, method: str) -> dict[int, float]:
    return {seed: 100 * accuracy for seed, accuracy in results.accuracies(benchmark, method).items()}


def _ours(cell: Cell, percent: list[float]) -> TableRow:
    mean, p = sum(percent) / len(percent), cell.published
    spread = math.sqrt(sum((x - mean) ** 2 for x in percent) / (len(percent) - 1)) if len(percent) > 1 else math.nan
    return TableRow(cell, len(percent), mean, spread, difference(percent, p.mean, p.std, p.n))


def _extra_pairs(target: Target, cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """The methods of rows that a table compares besides; a row may be of several."""
    named: dict[str, list[str]] = {}
    for cell in cells:
        named.setdefault(cell.row, []).append(cell.method)
    for row, rival in target.pairs:
        yield from product(named.get(row, ()), named.get(rival, ()))


def _best(target: Target, benchmark: str, cells: Sequence[Cell], results: Results) -> dict[Pair, dict[str, Any]]:
    """The best edited method against the best that is neither edited nor given all data at once.

    Which that is, the paper says in a row of its own, its means say (of another on CIFAR-100), and ours do.
    """
    ours = {cell.method: fmean(runs) for cell in cells if (runs := _percent(results, benchmark, cell.method).values())}
    theirs = {cell.method: cell.published.mean for cell in cells}
    previous = next(c.published for c in table(target.table) if (c.benchmark, c.method) == (benchmark, PREVIOUS_BEST))
    best = max(filter(_edited, theirs), key=lambda method: theirs[method])
    rival = min(filter(_plain, theirs), key=lambda method: abs(theirs[method] - previous.mean))  # once it is no row's
    pairs: dict[str, tuple[str, ...]] = {
        "the paper's row": (best, rival),
        "its means": (best, max(filter(_plain, theirs), key=lambda method: theirs[method])),
    }
    if any(map(_edited, ours)) and any(map(_plain, ours)):
        pairs["ours"] = tuple(max(filter(kind, ours), key=lambda method: ours[method]) for kind in (_edited, _plain))
    found: dict[Pair, dict[str, Any]] = {}
    for pair in dict.fromkeys(pairs.values()):
        found[benchmark, pair[0], pair[1]] = {"chosen": ", ".join(name for name in pairs if pairs[name] == pair)}
    gap = round(theirs[best] - previous.mean, 2)
    found[benchmark, best, rival] |= {"published_gain": gap, "published_marks": previous.marks}
    return found


def _edited(method: str) -> bool:
    return "+" in method


def _plain(method: str) -> bool:
    return "+" not in method and not method.startswith("iid")
