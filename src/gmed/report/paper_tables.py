"""Results as tables for a paper: LaTeX, Markdown and CSV."""

from __future__ import annotations

import io
import math
from collections import Counter

from gmed.io.files import write_csv
from gmed.report.comparisons import LEVELS, best_methods, comparisons, correction_in_words
from gmed.results import Results, Row, markdown
from gmed.results.comparisons import Comparison
from gmed.results.markdown import plain
from gmed.results.wording import p_value

COLUMNS = (
    *("benchmark", "method", "n", "mean", "std", "published_mean", "published_std", "published_n", "published_table"),
    *("difference", "difference_error", "gain_over", "gain", "gain_low", "gain_high", "gain_n", "effect_size"),
    *("p", "p_corrected", "marks"),
)


def csv_table(results: Results) -> str:
    """A row for each method on each benchmark, accuracies in percent; what is undefined is empty."""
    rows = results.rows()
    compared = {(c.benchmark, c.method): c for c in comparisons(results, rows)}
    lines: list[dict[str, object]] = []
    for row in rows:
        theirs, found = row.published, compared.get((row.benchmark, row.method))
        values: dict[str, object] = {
            "benchmark": row.benchmark,
            "method": row.method,
            "n": row.n,
            "mean": row.mean,
            "std": row.std,
        }
        if theirs:
            values |= {"published_mean": theirs.mean, "published_std": theirs.std, "published_n": theirs.n or None}
            values["published_table"] = theirs.table
        if row.difference:
            values |= {"difference": row.difference.mean, "difference_error": row.difference.error}
        if found:
            gain = found.gain
            values |= {"gain_over": found.rival, "gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
            values |= {"gain_n": gain.n, "effect_size": gain.effect_size, "p": gain.p, "p_corrected": found.corrected}
            values["marks"] = found.marks
        lines.append({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()})
    file = io.BytesIO()
    write_csv(file, COLUMNS, lines)
    return file.getvalue().decode()


def markdown_tables(results: Results) -> str:
    """Every method beside the published number, the gains of parts, and what the tests are corrected for."""
    rows = results.rows()
    compared = comparisons(results, rows)
    corrected = [
        f"- {plain(c.benchmark)}: {plain(c.method)} over {plain(c.rival)}: p {p_value(c.corrected)}"
        for c in compared
        if not math.isnan(c.corrected)
    ]
    note = f"\nThe same p-values after Holm's correction for {len(corrected)} comparisons:\n\n" + "\n".join(corrected)
    return markdown(results) + (note + "\n" if corrected else "")


def latex_table(results: Results) -> str:
    r"""A table for ``booktabs``: methods down, benchmarks across, the best of each column in bold.

    The caption says over how many seeds, and by what test a gain is marked.
    """
    rows = results.rows()
    compared = {(c.benchmark, c.method): c for c in comparisons(results, rows)}
    best, usual = best_methods(rows), Counter(row.n for row in rows).most_common(1)[0][0] if rows else 0
    benchmarks = list(dict.fromkeys(row.benchmark for row in rows))
    cells = {(row.benchmark, row.method): row for row in rows}
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        shown = [
            _cell(cells.get((benchmark, method)), best.get(benchmark, []), compared.get((benchmark, method)), usual)
            for benchmark in benchmarks
        ]
        lines.append(" & ".join([rf"\texttt{{{escaped(method)}}}", *shown]) + r" \\")
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_caption(rows, list(compared.values()), usual)}}}",
            rf"\begin{{tabular}}{{l{'r' * len(benchmarks)}}}",
            r"\toprule",
            " & ".join(["method", *(escaped(name) for name in benchmarks)]) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _cell(row: Row | None, best: list[str], compared: Comparison | None, usual: int) -> str:
    if row is None:
        return "--"
    spread = "" if math.isnan(row.std) else rf" \pm {row.std:.1f}"
    mean = rf"\mathbf{{{row.mean:.2f}}}" if row.method in best else f"{row.mean:.2f}"
    stars = compared.marks.replace("*", r"\ast") if compared else ""
    marks = f"^{{{stars}}}" if stars else ""
    return f"${mean}{spread}{marks}$" + (rf" {{\scriptsize ({row.n})}}" if row.n != usual else "")


def _caption(rows: list[Row], compared: list[Comparison], usual: int) -> str:
    others = any(row.n != usual for row in rows)
    counted = rf"$n = {usual}$ seeds" + (" (another $n$ in brackets)" if others else "")
    parts = [
        rf"Final accuracy in \%, mean $\pm$ standard deviation over {counted}.",
        "Bold: the best method that meets the stream as it comes.",
    ]
    if compared:
        ast = r"\ast"
        stars = [rf"$^{{{ast * (place + 1)}}}$ $p < {level:g}$" for place, level in enumerate(LEVELS)]
        parts.append(
            "Marks: better than the same method without the part named last at the same seeds, one-tailed paired "
            rf"$t$-test, {correction_in_words(compared)} ({', '.join(stars)})."
        )
    return " ".join(parts)


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: rf"\{character}" for character in "&%$#_{}"},
}


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is; what its fonts may lack becomes a question mark.

    >>> print(escaped("a_b^2 & 50 % {x}"))
    a\_b\textasciicircum{}2 \& 50 \% \{x\}
    """
    return "".join(SPECIAL.get(c, c if c.isascii() and c.isprintable() else "?") for c in text)
