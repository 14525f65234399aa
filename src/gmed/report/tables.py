"""The tables of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from gmed.engine import RunResult
from gmed.report.grouping import by_method
from gmed.results import Row
from gmed.results.formatting import format_mean_std, format_p
from gmed.results.metrics import Metrics
from gmed.results.stats import Comparison
from gmed.results.tables import (
    METHOD,
    MISS_LEGEND,
    MISSING,
    Cell,
    Column,
    Table,
    accuracy_cell,
    difference_cell,
    published_cell,
)


def result_table(rows: Sequence[Row], best: Sequence[str], compared: Mapping[str, Comparison], anchor: str) -> Table:
    """Return the results of a benchmark with published numbers and the gain of each method over its baseline."""
    columns = (
        ("n", "seeds"),
        ("accuracy, %", "final accuracy, mean ± standard deviation over seeds"),
        ("paper", "the published mean ± standard deviation"),
        ("ours − paper", f"difference ± its standard error; {MISS_LEGEND}"),
        ("gain", "over the baseline, paired by seed, with 95 % interval"),
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
    """Return a gain with its interval and marks, and its corrected p-value; a note has the uncorrected one."""
    gain = comparison.gain
    note = f"over {comparison.baseline}, {gain.n} pairs, d = {gain.effect_size:.2f}"
    if gain.mixed:
        note += f"; {gain.mixed} pairs on different devices or versions of torch"
    p = comparison.corrected_p
    return [
        Cell(
            f"{gain.mean:+.2f} {interval(gain.low, gain.high)}",
            gain.mean,
            bool(comparison.marks),
            comparison.marks,
            note,
        ),
        MISSING
        if math.isnan(p)
        else Cell(format_p(p).removeprefix("= "), p, note=f"uncorrected: p {format_p(gain.p)}"),
    ]


METRICS = (
    ("forgetting", "forgetting", "drop of earlier tasks from their maximum, points", 100),
    ("backward_transfer", "backward transfer", "change of earlier tasks since they were learned, points", 100),
    (
        "forward_transfer",
        "forward transfer",
        "later tasks before they are learned, compared with the untrained model",
        100,
    ),
    ("anytime", "anytime", "mean accuracy on tasks seen so far, over points of evaluation, %", 100),
    ("worst_case", "worst case", "lowest accuracy since a task was learned, averaged, %", 100),
    ("prequential", "prequential", "accuracy on each batch before it is learned, %", 100),
    ("forward_passes", "forward", "forward passes per example of the stream", 1),
    ("backward_passes", "backward", "backward passes per example of the stream", 1),
    ("seconds", "seconds", "training time", 1),
    ("overhead", "memory, examples", "stored examples and added parameters, counted in examples as in the paper", 1),
    ("overhead_mb", "memory, MB", "actual size of the same", 1),
)


def metric_table(runs: Sequence[RunResult], anchor: str) -> Table:
    """Return the other metrics of every method: means over seeds and standard deviations."""
    table = Table([METHOD, *(Column(title, True, note) for _, title, note, _ in METRICS)], name=f"{anchor}-metrics")
    for method, method_runs in by_method(runs).items():
        metrics = [Metrics.of(run) for run in method_runs]
        cells: list[Cell] = []
        for name, _, _, scale in METRICS:
            values = [scale * value for run_metrics in metrics if not math.isnan(value := getattr(run_metrics, name))]
            if len(values) == len(metrics):
                mean = fmean(values)
                text = format_mean_std(mean, stdev(values) if len(values) > 1 else None)
                cells.append(Cell(text.replace("± ", "±\N{NO-BREAK SPACE}"), mean))
            else:
                cells.append(MISSING)
        table.add(method, *cells)
    return table.without_empty_columns()


def interval(low: float, high: float) -> str:
    """Return an interval in brackets, or an empty text if it is undefined.

    >>> interval(-0.5, 1.25), interval(math.nan, math.nan)
    ('[-0.50, +1.25]', '')
    """
    return "" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"
