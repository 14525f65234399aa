"""Tables of results: for the page, and for a paper as LaTeX, Markdown and CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from gmed.report.grouping import MethodRuns, is_iid_baseline, titles
from gmed.results import Results, Row, markdown
from gmed.results.formatting import format_mean_std, format_p
from gmed.results.metrics import Metrics
from gmed.results.stats import Comparison, compare
from gmed.results.tables import (
    METHOD,
    MISS_LEGEND,
    MISSING,
    Cell,
    Column,
    Table,
    accuracy_cell,
    as_csv,
    as_latex,
    difference_cell,
    escape_latex,
    escape_markdown,
    numbers,
    published_cell,
    texts,
)

LEVELS = (0.05, 0.01, 0.001)
"""Corrected p-values below which a gain is marked, one star for each."""


def comparisons(results: Results, rows: Sequence[Row]) -> list[Comparison]:
    """Return the comparison of every method with its baseline, where both have runs at the same seeds."""
    pairs = [(row.benchmark, row.method, row.gain_over) for row in rows if row.gain_over is not None]
    return compare(results, pairs, LEVELS, mark_corrected=True)


def describe_correction(compared: Sequence[Comparison]) -> str:
    """Return how p-values are corrected.

    >>> describe_correction([])
    'Holm-corrected for 0 comparisons'
    """
    return f"Holm-corrected for {len(compared)} comparison{'' if len(compared) == 1 else 's'}"


def best_methods(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return on each benchmark the online method with the highest mean, or all that tie.

    Methods that shuffle the stream (``iid-online``, ``iid-offline``) are upper bounds and do not count.

    >>> row = lambda method, mean: Row("split-mnist", method, 1, mean, 0.0, None, None, None, None)
    >>> best_methods([row("er", 80.0), row("mir", 79.0), row("er+gmed", 80.0), row("iid-online", 90.0)])
    {'split-mnist': ['er', 'er+gmed']}
    """
    candidates: dict[str, list[Row]] = {}
    for row in rows:
        if not is_iid_baseline(row.method):
            candidates.setdefault(row.benchmark, []).append(row)
    highest = {benchmark: max(row.mean for row in benchmark_rows) for benchmark, benchmark_rows in candidates.items()}
    return {
        benchmark: [row.method for row in benchmark_rows if math.isclose(row.mean, highest[benchmark])]
        for benchmark, benchmark_rows in candidates.items()
    }


def result_table(rows: Sequence[Row], best: Sequence[str], compared: Mapping[str, Comparison], anchor: str) -> Table:
    """Return the results of a benchmark with published numbers and the gain of each method over its baseline."""
    columns = (
        ("n", "seeds"),
        ("accuracy, %", "final accuracy, mean ± standard deviation over seeds"),
        ("paper", "the published mean ± standard deviation"),
        ("difference", f"measured minus published mean, ± its standard error; {MISS_LEGEND}"),
        ("gain", "over the baseline, paired by seed, with 95% interval"),
        ("p", "one-tailed paired t-test after Holm's correction for all comparisons of this report"),
    )
    table = Table([METHOD, *(Column(heading, True, note) for heading, note in columns)], name=f"{anchor}-results")
    for row in rows:
        accuracy, comparison = accuracy_cell(row), compared.get(row.method)
        if row.method in best:
            accuracy = replace(accuracy, strong=True, note="the best online method (iid-* excluded)")
        cells = [accuracy, published_cell(row), difference_cell(row)]
        table.add(row.method, row.n, *cells, *(_gain_cells(comparison) if comparison else [MISSING] * 2))
    return table.without_empty_columns()


def _gain_cells(comparison: Comparison) -> list[Cell]:
    """Return a gain with its interval and marks, and its corrected p-value; a note gives the uncorrected one."""
    gain = comparison.gain
    note = f"over {comparison.baseline}, {gain.n} pairs, d = {gain.effect_size:.2f}"
    if gain.mixed:
        note += f"; {gain.mixed} pairs on different devices or versions of torch"
    p = comparison.corrected_p
    text = f"{gain.mean:+.2f} {interval(gain.low, gain.high)}"
    p_cell = Cell(format_p(p).removeprefix("= "), p, note=f"uncorrected: p {format_p(gain.p)}")
    return [
        Cell(text, gain.mean, bool(comparison.marks), comparison.marks, note),
        MISSING if math.isnan(p) else p_cell,
    ]


METRICS = (
    ("forgetting", "forgetting", "drop in accuracy on earlier tasks from its maximum, points", 100),
    (
        "backward_transfer",
        "backward transfer",
        "change in accuracy on earlier tasks since they were learned, points",
        100,
    ),
    (
        "forward_transfer",
        "forward transfer",
        "accuracy on later tasks before they are learned, above the untrained model, points",
        100,
    ),
    ("anytime", "anytime", "mean accuracy on tasks seen so far, over points of evaluation, %", 100),
    ("worst_case", "worst case", "lowest accuracy on each task since it was learned, averaged, %", 100),
    ("prequential", "prequential", "accuracy on each batch before it is learned, %", 100),
    ("forward_passes", "forward", "forward passes per example of the stream", 1),
    ("backward_passes", "backward", "backward passes per example of the stream", 1),
    ("seconds", "seconds", "training time", 1),
    ("overhead", "memory, examples", "stored examples and added parameters, counted in examples as in the paper", 1),
    ("overhead_mb", "memory, MB", "actual size of stored examples and added parameters", 1),
)


def metric_table(runs: MethodRuns, anchor: str) -> Table:
    """Return the other metrics of every method: means over seeds and standard deviations."""
    table = Table([METHOD, *(Column(title, True, note) for _, title, note, _ in METRICS)], name=f"{anchor}-metrics")
    for method, method_runs in runs.items():
        metrics = [Metrics.of(run) for run in method_runs]
        cells = [_mean_cell([scale * getattr(m, name) for m in metrics]) for name, _, _, scale in METRICS]
        table.add(method, *cells)
    return table.without_empty_columns()


def _mean_cell(values: Sequence[float]) -> Cell:
    """Return a mean and its standard deviation, if the metric is defined for every run."""
    mean = fmean(values)
    if math.isnan(mean):
        return MISSING
    text = format_mean_std(mean, stdev(values) if len(values) > 1 else None)
    return Cell(text.replace("± ", "±\N{NO-BREAK SPACE}"), mean)


def interval(low: float, high: float) -> str:
    """Return an interval in brackets, or an empty text if it is undefined.

    >>> interval(-0.5, 1.25), interval(math.nan, math.nan)
    ('[-0.50, +1.25]', '')
    """
    return "" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"


CSV_COLUMNS = {
    **{name: ("row", name) for name in ("benchmark", "method", "n", "mean", "std")},
    **{f"published_{name}": ("published", name) for name in ("mean", "std", "n", "table")},
    "difference": ("difference", "mean"),
    "difference_error": ("difference", "error"),
    "gain_over": ("comparison", "baseline"),
    "gain": ("gain", "mean"),
    "gain_low": ("gain", "low"),
    "gain_high": ("gain", "high"),
    "gain_n": ("gain", "n"),
    "effect_size": ("gain", "effect_size"),
    "p": ("gain", "p"),
    "p_corrected": ("comparison", "corrected_p"),
    "marks": ("comparison", "marks"),
}
"""The columns of a CSV file, each with the object and the attribute that it shows."""


def csv_table(results: Results) -> str:
    """Return a CSV row for each method on each benchmark, accuracies in percent; undefined values are empty."""
    rows = results.rows()
    compared = {(c.benchmark, c.method): c for c in comparisons(results, rows)}
    table = Table(texts(*CSV_COLUMNS))
    for row in rows:
        comparison = compared.get((row.benchmark, row.method))
        sources = {
            "row": row,
            "published": row.published,
            "difference": row.difference,
            "comparison": comparison,
            "gain": comparison and comparison.gain,
        }
        values = {name: getattr(sources[source], attribute, None) for name, (source, attribute) in CSV_COLUMNS.items()}
        values["published_n"] = values["published_n"] or None  # 0 where the paper does not give it
        table.add(*(MISSING if value is None else Cell(str(value), value) for value in values.values()))
    return as_csv(table)


def markdown_tables(results: Results) -> str:
    """Return every method with the published number, the gains of components, and the corrections of the tests."""
    rows = results.rows()
    compared = comparisons(results, rows)
    corrected = []
    for c in compared:
        if not math.isnan(c.corrected_p):
            benchmark, method, baseline = map(escape_markdown, (c.benchmark, c.method, c.baseline))
            corrected.append(f"- {benchmark}: {method} over {baseline}: p {format_p(c.corrected_p)}")
    note = f"\nThe same p-values after Holm's correction for {len(corrected)} comparisons:\n\n" + "\n".join(corrected)
    return markdown(results) + (note + "\n" if corrected else "")


def latex_table(results: Results) -> str:
    r"""Return a table for ``booktabs`` of methods by benchmarks, the best of each column in bold.

    The caption states the number of seeds and the test by which a gain is marked.
    """
    rows = results.rows()
    compared = {(c.benchmark, c.method): c for c in comparisons(results, rows)}
    best, common_n = best_methods(rows), Counter(row.n for row in rows).most_common(1)[0][0] if rows else 0
    benchmarks = list(dict.fromkeys(row.benchmark for row in rows))
    table = Table([METHOD, *numbers(*titles(benchmarks).values())])
    cells = {(row.benchmark, row.method): row for row in rows}
    for method in dict.fromkeys(row.method for row in rows):
        method_rows = [cells.get((benchmark, method)) for benchmark in benchmarks]
        table.add(method, *(_cell(row, best, compared, common_n) if row else MISSING for row in method_rows))
    return as_latex(table, _caption(rows, list(compared.values()), common_n, results.baseline))


def _cell(row: Row, best: dict[str, list[str]], compared: dict[tuple[str, str], Comparison], common_n: int) -> Cell:
    comparison = compared.get((row.benchmark, row.method))
    return replace(
        accuracy_cell(row),
        strong=row.method in best.get(row.benchmark, []),
        marks=comparison.marks if comparison else "",
        note=str(row.n) if row.n != common_n else "",
    )


def _caption(rows: list[Row], compared: list[Comparison], common_n: int, baseline: str | None) -> str:
    varies = any(row.n != common_n for row in rows)
    seeds = rf"$n = {common_n}$ seeds" + (" (different $n$ in brackets)" if varies else "")
    parts = [
        rf"Final accuracy in \%, mean $\pm$ standard deviation over {seeds}.",
        "Bold: the best online method (iid-* excluded).",
    ]
    if compared:
        ast = r"\ast"
        other = rf"\texttt{{{escape_latex(baseline)}}}" if baseline else "the same method without its last component"
        stars = [rf"$^{{{ast * (index + 1)}}}$ $p < {level:g}$" for index, level in enumerate(LEVELS)]
        parts.append(
            f"Marks: better than {other} at the same seeds, one-tailed paired "
            rf"$t$-test, {describe_correction(compared)} ({', '.join(stars)})."
        )
    return " ".join(parts)
