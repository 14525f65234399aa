"""A table of the paper, computed anew: ours beside the published numbers, with the comparisons the paper makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from gmed.experiment import Watcher, default_store
from gmed.paper import Cell, quantities
from gmed.paper.numbers import PREVIOUS_BEST, table
from gmed.paper.targets import Target, get_target
from gmed.plan import USUAL_SEEDS, Planned, choose, compute
from gmed.results import Difference, Failure, Gain, Results, difference
from gmed.results.results import finite
from gmed.results.statistics import holm, permutation_p


@dataclass(frozen=True)
class Ours:
    """A cell of the paper, and what came out here; accuracies in percent."""

    cell: Cell
    n: int
    mean: float
    std: float
    difference: Difference


@dataclass(frozen=True)
class Comparison:
    """One method against another at the same seeds.

    Attributes
    ----------
    gain
        The paired effect with its interval and the paper's test.
    permutation
        P of the permutation test of the same question.
    corrected
        P of the paper's test, corrected for all comparisons shown together (Holm): those of a table, or those that a
        figure adds to it.
    marks
        What the paper would have printed: an asterisk for every one of its levels that the uncorrected p is below;
        none in a small version.
    published_gain, published_marks
        The difference of the means that the paper reports for both in this table, and its marks; ``None`` where it
        makes no such comparison.
    published_p
        Its p, where the table prints it.
    chosen
        Of the best edited method against the best that is not edited, by whose means they are the best.
    """

    benchmark: str
    method: str
    rival: str
    gain: Gain
    permutation: float
    corrected: float
    marks: str = ""
    published_gain: float | None = None
    published_marks: str | None = None
    published_p: float | None = None
    chosen: str = ""


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
    rows: list[Ours]
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
            "comparisons": [finite(asdict(comparison)) for comparison in self.comparisons],
            "best": [finite(asdict(comparison)) for comparison in self.best],
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


def planned(target: Target) -> list[Planned]:
    """The runs that a table needs.

    >>> planned(get_target("gss"))[0]
    Planned(benchmark='split-mnist', method='gss', seeds=20)
    """
    return [Planned(cell.benchmark, cell.method, cell.published.n or USUAL_SEEDS) for cell in target.cells()]


def assemble(
    target: Target,
    columns: dict[str, list[Cell]],
    results: Results,
    missing: dict[str, str] | None = None,
    quick: bool = False,
) -> Reproduction:
    """The table and its comparisons, from results that are there."""
    marking = replace(target, levels=()) if quick else target
    rows: list[Ours] = []
    pairs: dict[tuple[str, str, str], str | None] = {}
    best: list[Comparison] = []
    for benchmark, cells in columns.items():
        for cell in cells:
            percent = _percent(results, benchmark, cell.method)
            if percent:
                rows.append(_ours(cell, list(percent.values())))
                rival = target.rival(benchmark, cell.method)
                if rival and _percent(results, benchmark, rival):
                    pairs[benchmark, cell.method, rival] = cell.published.marks
        if target.best:
            best += _best(marking, benchmark, cells, results)
        for method, rival in _besides(target, [cell for cell in cells if _percent(results, benchmark, cell.method)]):
            pairs.setdefault((benchmark, method, rival), None)
    comparisons = [c for pair, marks in pairs.items() if (c := _compare(marking, results, *pair, marks)) is not None]
    return Reproduction(target, rows, _corrected(comparisons), results, missing or {}, quick, _corrected(best))


def compared(results: Results, pairs: Iterable[tuple[str, str, str]], levels: Sequence[float]) -> list[Comparison]:
    """On each benchmark a method against its rival, where both were run, corrected for their number."""
    run = [(b, method, rival) for b, method, rival in pairs if all(_percent(results, b, m) for m in (method, rival))]
    return _corrected([c for pair in run if (c := _paired(results, *pair, levels)) is not None])


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    ps = holm([comparison.gain.p for comparison in comparisons])
    return [replace(comparison, corrected=p) for comparison, p in zip(comparisons, ps, strict=True)]


def _percent(results: Results, benchmark: str, method: str) -> dict[int, float]:
    return {seed: 100 * accuracy for seed, accuracy in results.accuracies(benchmark, method).items()}


def _ours(cell: Cell, percent: list[float]) -> Ours:
    mean, p = sum(percent) / len(percent), cell.published
    spread = math.sqrt(sum((x - mean) ** 2 for x in percent) / (len(percent) - 1)) if len(percent) > 1 else math.nan
    return Ours(cell, len(percent), mean, spread, difference(percent, p.mean, p.std, p.n))


def _besides(target: Target, cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """The methods of rows that a table compares besides; a row may be of several."""
    named: dict[str, list[str]] = {}
    for cell in cells:
        named.setdefault(cell.row, []).append(cell.method)
    for row, rival in target.pairs:
        yield from product(named.get(row, ()), named.get(rival, ()))


def _best(target: Target, benchmark: str, cells: Sequence[Cell], results: Results) -> Iterator[Comparison]:
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
    for pair in dict.fromkeys(pairs.values()):
        found = _compare(target, results, benchmark, pair[0], pair[1], None) if set(pair) <= ours.keys() else None
        if found is None:
            continue
        if pair == (best, rival):
            gap = round(theirs[best] - previous.mean, 2)
            found = replace(found, published_gain=gap, published_marks=previous.marks)
        whose = ", ".join(name for name, chosen in pairs.items() if chosen == pair)
        yield replace(found, marks="†" if found.gain.p < max(target.levels, default=0.0) else "", chosen=whose)


def _edited(method: str) -> bool:
    return "+" in method


def _plain(method: str) -> bool:
    return "+" not in method and not method.startswith("iid")


def _compare(
    target: Target, results: Results, benchmark: str, method: str, rival: str, published: str | None
) -> Comparison | None:
    found = _paired(results, benchmark, method, rival, target.levels)
    if found is None:
        return None
    means = {cell.method: cell.published.mean for cell in target.cells() if cell.benchmark == benchmark}
    apart = round(means[method] - means[rival], 2) if method in means and rival in means else None
    printed = (q.value for q in quantities() if (q.where, q.row, q.benchmark) == (target.table, "p-value", benchmark))
    return replace(found, published_gain=apart, published_marks=published, published_p=next(printed, None))


def _paired(results: Results, benchmark: str, method: str, rival: str, levels: Sequence[float]) -> Comparison | None:
    gain = results.gain(benchmark, method, rival)
    if gain is None:
        return None
    ours, theirs = _percent(results, benchmark, method), _percent(results, benchmark, rival)
    seeds = sorted(ours.keys() & theirs.keys())
    tossed = permutation_p([ours[s] for s in seeds], [theirs[s] for s in seeds])
    marks = "*" * sum(gain.p < level for level in levels)
    return Comparison(benchmark, method, rival, gain, tossed, corrected=math.nan, marks=marks)
