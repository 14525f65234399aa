"""Results as tables for a paper: LaTeX, Markdown and CSV."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

from gmed.report.comparisons import LEVELS, best_methods, comparisons, describe_correction
from gmed.report.grouping import titles
from gmed.results import Results, Row, markdown
from gmed.results.formatting import format_p
from gmed.results.stats import Comparison
from gmed.results.tables import (
    METHOD,
    MISSING,
    Cell,
    Table,
    accuracy_cell,
    as_csv,
    as_latex,
    escape_latex,
    numbers,
    texts,
)
from gmed.results.tables import escape_markdown as plain

COLUMNS = (
    *("benchmark", "method", "n", "mean", "std", "published_mean", "published_std", "published_n", "published_table"),
    *("difference", "difference_error", "gain_over", "gain", "gain_low", "gain_high", "gain_n", "effect_size"),
    *("p", "p_corrected", "marks"),
)


def csv_table(results: Results) -> str:
    """Return a CSV row for each method on each benchmark, accuracies in percent; undefined values are empty."""
    rows = results.rows()
    compared = {(c.benchmark, c.method): c for c in comparisons(results, rows)}
    table = Table(texts(*COLUMNS))
    for row in rows:
        published, comparison = row.published, compared.get((row.benchmark, row.method))
        values: dict[str, Any] = {name: getattr(row, name) for name in ("benchmark", "method", "n", "mean", "std")}
        if published:
            values |= {
                "published_mean": published.mean,
                "published_std": published.std,
                "published_n": published.n or None,
            }
            values["published_table"] = published.table
        if row.difference:
            values |= {"difference": row.difference.mean, "difference_error": row.difference.error}
        if comparison:
            gain = comparison.gain
            values |= {
                "gain_over": comparison.baseline,
                "gain": gain.mean,
                "gain_low": gain.low,
                "gain_high": gain.high,
            }
            values |= {
                "gain_n": gain.n,
                "effect_size": gain.effect_size,
                "p": gain.p,
                "p_corrected": comparison.corrected_p,
            }
            values["marks"] = comparison.marks
        cells = (values.get(name) for name in COLUMNS)
        table.add(*(MISSING if value is None else Cell(str(value), value) for value in cells))
    return as_csv(table)


def markdown_tables(results: Results) -> str:
    """Return every method with the published number, the gains of components, and the corrections of the tests."""
    rows = results.rows()
    compared = comparisons(results, rows)
    corrected = [
        f"- {plain(c.benchmark)}: {plain(c.method)} over {plain(c.baseline)}: p {format_p(c.corrected_p)}"
        for c in compared
        if not math.isnan(c.corrected_p)
    ]
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
