"""Reproduction of the paper's tables of accuracies: measured and published numbers, and the paper's comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from gmed.callbacks import Callback
from gmed.experiment import default_store
from gmed.paper import Cell, quantities
from gmed.paper.catalog import PaperTable, get_target
from gmed.paper.plan import DEFAULT_SEEDS, PlannedRuns, compute, select_runs
from gmed.paper.published import PREVIOUS_BEST, table
from gmed.results import Difference, Failure, Results, difference
from gmed.results.stats import Comparison, compare, nan_to_none

Pair = tuple[str, str, str]
"""A benchmark, a method and its baseline."""


@dataclass(frozen=True)
class TableRow:
    """A cell of the paper and the measured accuracy, in percent."""

    cell: Cell
    n: int
    mean: float
    std: float
    difference: Difference


@dataclass
class Reproduction:
    """A reproduced table of the paper.

    Attributes
    ----------
    missing
        Benchmarks of the table, or methods, that were left out, and why.
    quick
        Whether it is the quick version, which allows no conclusions.
    best
        The best edited method against the previous best on each benchmark, corrected for their number alone. Where
        the two are selected by the measured means, the selection biases the difference upwards.
    """

    target: PaperTable
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
        """Return the reproduction as JSON-compatible data."""
        return {
            "schema": "gmed-reproduction/1",
            "target": asdict(self.target),
            "quick": self.quick,
            "missing": self.missing,
            "rows": [nan_to_none(asdict(row)) for row in self.rows],
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
    callback: Callable[[], Callback] = Callback,
    **options: Any,
) -> Reproduction:
    """Do the missing runs of a table of the paper, and compare the results with the published numbers.

    Parameters
    ----------
    target
        The name of the table, as ``gmed reproduce --list`` shows it.
    benchmarks
        The columns to run; by default all whose data are available.
    seeds
        The number of seeds; by default that of the paper.
    quick
        The quick version: three seeds, one column. It shows that everything works, and says nothing about the paper.
    callback
        Factory of the callback that receives the progress on each benchmark.
    options
        ``store``, ``device``, ``workers``, ``data_dir`` and so on, as in :func:`gmed.run`.

    Examples
    --------
    >>> reproduction = reproduce("er-t", benchmarks=["split-mnist"], seeds=1, store=None, workers=0)
    >>> [(row.cell.method, row.n) for row in reproduction.rows]
    [('er-t', 1), ('er-t+gmed', 1)]
    """
    resolved = get_target(target)
    selection = select_runs(
        planned(resolved),
        resolved.table,
        benchmarks=benchmarks,
        seeds=seeds,
        quick=quick,
        data_dir=options.get("data_dir"),
        store=options.get("store", default_store()),
    )
    results = compute(selection.planned, callback, **options)
    columns = {name: [cell for cell in resolved.cells() if cell.benchmark == name] for name in selection.benchmarks}
    return build_table(resolved, columns, results, selection.missing, quick)


def planned(target: PaperTable) -> list[PlannedRuns]:
    """Return the runs that a table needs.

    >>> planned(get_target("gss"))[0]
    PlannedRuns(benchmark='split-mnist', method='gss', seeds=20)
    """
    return [PlannedRuns(cell.benchmark, cell.method, cell.published.n or DEFAULT_SEEDS) for cell in target.cells()]


def build_table(
    target: PaperTable,
    columns: dict[str, list[Cell]],
    results: Results,
    missing: dict[str, str] | None = None,
    quick: bool = False,
) -> Reproduction:
    """Return a table and its comparisons from available results."""
    levels = () if quick else target.levels
    rows: list[TableRow] = []
    pairs: dict[Pair, str | None] = {}
    best_pairs: dict[Pair, dict[str, Any]] = {}
    for benchmark, cells in columns.items():
        for cell in cells:
            if accuracies := percent(results, benchmark, cell.method):
                rows.append(_measured_row(cell, accuracies))
                if baseline := target.baseline(benchmark, cell.method):
                    pairs[benchmark, cell.method, baseline] = cell.published.marks
        if target.best:
            best_pairs |= _best_pairs(target, benchmark, cells, results)
        measured = [cell for cell in cells if percent(results, benchmark, cell.method)]
        for method, baseline in _extra_pairs(target, measured):
            pairs.setdefault((benchmark, method, baseline), None)
    comparisons = [
        replace(c, published_marks=pairs[c.benchmark, c.method, c.baseline], **_published_comparison(target, c))
        for c in compare(results, pairs, levels)
    ]
    best = [
        replace(
            c, marks=c.marks and "†", **_published_comparison(target, c) | best_pairs[c.benchmark, c.method, c.baseline]
        )
        for c in compare(results, best_pairs, levels)
    ]
    return Reproduction(target, rows, comparisons, results, missing or {}, quick, best)


def _published_comparison(target: PaperTable, c: Comparison) -> dict[str, Any]:
    """Return the published numbers of a comparison: the difference of the means, and the p-value."""
    means = {cell.method: cell.published.mean for cell in target.cells() if cell.benchmark == c.benchmark}
    gap = round(means[c.method] - means[c.baseline], 2) if c.method in means and c.baseline in means else None
    printed = (
        q.value for q in quantities() if (q.location, q.row, q.benchmark) == (target.table, "p-value", c.benchmark)
    )
    return {"published_gain": gap, "published_p": next(printed, None)}


def percent(results: Results, benchmark: str, method: str) -> list[float]:
    """Return the final accuracies of a method, in percent."""
    return [100 * accuracy for accuracy in results.accuracies(benchmark, method).values()]


def _measured_row(cell: Cell, accuracies: list[float]) -> TableRow:
    n, mean, p = len(accuracies), sum(accuracies) / len(accuracies), cell.published
    std = math.sqrt(sum((x - mean) ** 2 for x in accuracies) / (n - 1)) if n > 1 else math.nan
    return TableRow(cell, n, mean, std, difference(accuracies, p.mean, p.std, p.n))


def _extra_pairs(target: PaperTable, cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """Yield the methods of the rows that a table compares additionally; a row may have several methods."""
    methods: dict[str, list[str]] = {}
    for cell in cells:
        methods.setdefault(cell.row, []).append(cell.method)
    for row, baseline in target.pairs:
        yield from product(methods.get(row, ()), methods.get(baseline, ()))


def _best_pairs(
    target: PaperTable, benchmark: str, cells: Sequence[Cell], results: Results
) -> dict[Pair, dict[str, Any]]:
    """Return the pairs of the best edited method and the best online method without edits.

    There are up to three selections of the two methods: by a row of the paper, by the means in the paper (which select
    another baseline on CIFAR-100), and by the measured means.
    """
    measured = {cell.method: fmean(runs) for cell in cells if (runs := percent(results, benchmark, cell.method))}
    reported = {cell.method: cell.published.mean for cell in cells}
    previous = next(c.published for c in table(target.table) if (c.benchmark, c.method) == (benchmark, PREVIOUS_BEST))
    best = max(filter(_edited, reported), key=lambda method: reported[method])
    # the method closest to the row "previous best", as one of its values matches no row exactly
    baseline = min(filter(_plain, reported), key=lambda method: abs(reported[method] - previous.mean))
    pairs: dict[str, tuple[str, ...]] = {
        "the paper's row": (best, baseline),
        "its means": (best, max(filter(_plain, reported), key=lambda method: reported[method])),
    }
    if any(map(_edited, measured)) and any(map(_plain, measured)):
        pairs["ours"] = tuple(
            max(filter(kind, measured), key=lambda method: measured[method]) for kind in (_edited, _plain)
        )
    best_pairs: dict[Pair, dict[str, Any]] = {}
    for pair in dict.fromkeys(pairs.values()):
        best_pairs[benchmark, pair[0], pair[1]] = {
            "selected_by": ", ".join(name for name in pairs if pairs[name] == pair)
        }
    gap = round(reported[best] - previous.mean, 2)
    best_pairs[benchmark, best, baseline] |= {"published_gain": gap, "published_marks": previous.marks}
    return best_pairs


def _edited(method: str) -> bool:
    return "+" in method


def _plain(method: str) -> bool:
    return "+" not in method and not method.startswith("iid")
