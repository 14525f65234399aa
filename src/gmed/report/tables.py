"""The tables of the report: cells with what is shown and what they are sorted by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from gmed.engine import RunResult
from gmed.report.runs import by_method
from gmed.results import Row
from gmed.results.comparisons import Comparison
from gmed.results.metrics import Metrics
from gmed.results.wording import apart, p_value, spread


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes
    ----------
    text
        What is shown.
    value
        What the column is sorted by; ``nan`` is last either way.
    strong, note
        Whether it stands out, and what is said of it when it is pointed at.
    """

    text: str
    value: float | str = math.nan
    strong: bool = False
    note: str = ""

    @property
    def key(self) -> str:
        """What the column is sorted by, as text; empty where there is nothing."""
        return "" if isinstance(self.value, float) and math.isnan(self.value) else str(self.value)

    @property
    def numeric(self) -> bool:
        """Whether it is a number."""
        return not isinstance(self.value, str)


@dataclass(frozen=True)
class Table:
    """Rows under headings, each heading with what it means."""

    name: str
    headings: Sequence[tuple[str, str]]
    rows: list[list[Cell]] = field(default_factory=list)

    def without_empty_columns(self) -> Table:
        """The same, but for columns in which nothing is known.

        >>> made = Table("t", [("a", ""), ("b", "")], [[Cell("1", 1), Cell("–")], [Cell("–"), Cell("–")]])
        >>> [heading for heading, _ in made.without_empty_columns().headings]
        ['a']
        """
        known = [place for place in range(len(self.headings)) if any(row[place].text != "–" for row in self.rows)]
        rows = [[row[place] for place in known] for row in self.rows]
        return Table(self.name, [self.headings[place] for place in known], rows)


def result_table(rows: Sequence[Row], best: Sequence[str], compared: Mapping[str, Comparison], place: str) -> Table:
    """Every method of a benchmark beside the published number, and what its last part gains."""
    table = Table(
        f"{place}-results",
        (
            ("method", ""),
            ("n", "seeds"),
            ("accuracy, %", "final accuracy, mean ± standard deviation over seeds"),
            ("paper", "the published mean ± standard deviation"),
            ("ours − paper", "difference ± its standard error; ! more than two standard errors apart"),
            ("gain", "over the same method without the part named last, paired by seed, with 95 % interval"),
            ("p", "one-tailed paired t-test, uncorrected"),
            ("p, corrected", "after Holm's correction for all comparisons of this report"),
        ),
    )
    for row in rows:
        found, theirs = compared.get(row.method), row.published
        gain = found.gain if found else None
        tested = gain is not None and not math.isnan(gain.p)
        table.rows.append(
            [
                Cell(row.method, row.method),
                Cell(str(row.n), row.n),
                Cell(
                    spread(row.mean, row.std),
                    row.mean,
                    row.method in best,
                    "the best that meets the stream as it comes" if row.method in best else "",
                ),
                Cell(spread(theirs.mean, theirs.std), theirs.mean, note=theirs.table) if theirs else Cell("–"),
                Cell(
                    f"{'! ' if row.missed else ''}{apart(row.difference)}",
                    row.difference.mean,
                    note="more than two standard errors from the published mean" if row.missed else "",
                )
                if row.difference
                else Cell("–"),
                Cell(
                    f"{gain.mean:+.2f} {interval(gain.low, gain.high)}{found.marks}",
                    gain.mean,
                    bool(found.marks),
                    f"over {found.rival}, {gain.n} pairs, d = {gain.effect_size:.2f}"
                    + (f"; {gain.mixed} pairs on different devices or versions of torch" if gain.mixed else ""),
                )
                if found and gain
                else Cell("–"),
                Cell(p_value(gain.p).removeprefix("= "), gain.p) if gain and tested else Cell("–"),
                Cell(p_value(found.corrected).removeprefix("= "), found.corrected) if found and tested else Cell("–"),
            ]
        )
    return table.without_empty_columns()


METRICS = (
    ("forgetting", "forgetting", "how far earlier tasks have fallen from their best, points", 100),
    ("backward_transfer", "backward transfer", "change of earlier tasks since they were learned, points", 100),
    ("forward_transfer", "forward transfer", "later tasks before they are learned, against the untrained model", 100),
    ("anytime", "anytime", "mean accuracy on tasks met so far, over points of evaluation, %", 100),
    ("worst_case", "worst case", "lowest accuracy since a task was learned, averaged, %", 100),
    ("prequential", "prequential", "accuracy on each batch before it is learned from, %", 100),
    ("forward_passes", "forward", "forward passes per example of the stream", 1),
    ("backward_passes", "backward", "backward passes per example of the stream", 1),
    ("seconds", "seconds", "of training", 1),
    ("overhead", "memory, examples", "stored examples, and added parameters as so many, as the paper counts", 1),
    ("overhead_mb", "memory, MB", "what all of that takes in truth", 1),
)


def metric_table(runs: Sequence[RunResult], place: str) -> Table:
    """What else was measured: means over seeds and standard deviations."""
    table = Table(f"{place}-metrics", (("method", ""), *((title, what) for _, title, what, _ in METRICS)))
    for method, own in by_method(runs).items():
        metrics = [Metrics.of(run) for run in own]
        cells = [Cell(method, method)]
        for name, _, _, unit in METRICS:
            values = [unit * value for one in metrics if not math.isnan(value := getattr(one, name))]
            if len(values) == len(metrics):
                mean = fmean(values)
                said = spread(mean, stdev(values) if len(values) > 1 else None)
                cells.append(Cell(said.replace("± ", "±\N{NO-BREAK SPACE}"), mean))
            else:
                cells.append(Cell("–"))
        table.rows.append(cells)
    return table.without_empty_columns()


def interval(low: float, high: float) -> str:
    """An interval in brackets, if there is one.

    >>> interval(-0.5, 1.25), interval(math.nan, math.nan)
    ('[-0.50, +1.25]', '')
    """
    return "" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"
