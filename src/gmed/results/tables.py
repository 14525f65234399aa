"""Tables of results, independent of the output format, and their Markdown, LaTeX and CSV forms."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gmed.io.files import write_csv
from gmed.results.formatting import format_difference, format_mean_std, format_p
from gmed.results.results import MIN_SEEDS_TO_JUDGE, Results, Row


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    number
        Whether it contains numbers, which are right-aligned and never wrapped.
    note
        Explanation of the heading.
    code
        Whether it contains names of methods, shown as code.
    """

    heading: str
    number: bool = False
    note: str = ""
    code: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes
    ----------
    text
        The text that is shown.
    value
        The sort key of the column; ``nan`` is last in either direction.
    strong
        Whether it is emphasized.
    marks
        Marks of significance after the text.
    note
        A further explanation, shown if there is room.
    color
        The color of the text, if colors are supported.
    """

    text: str
    value: float | str = math.nan
    strong: bool = False
    marks: str = ""
    note: str = ""
    color: str = ""

    @property
    def missing(self) -> bool:
        """Whether there is no value."""
        return self.text == "-"

    @property
    def key(self) -> float | str:
        """The sort key of the column; empty if there is no value."""
        return "" if isinstance(self.value, float) and math.isnan(self.value) else self.value


MISSING = Cell("-")


@dataclass(frozen=True)
class Table:
    """Rows under columns."""

    columns: Sequence[Column]
    title: str = ""
    name: str = ""
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell | str | int) -> None:
        """Add a row; a text or integer becomes a cell that is sorted by its value."""
        self.rows.append([cell if isinstance(cell, Cell) else Cell(str(cell), cell) for cell in cells])

    def without_empty_columns(self) -> Table:
        """Return the table without columns that have no values.

        >>> table = Table([Column("a"), Column("b")])
        >>> table.add(1, MISSING)
        >>> [column.heading for column in table.without_empty_columns().columns]
        ['a']
        """
        nonempty = [i for i in range(len(self.columns)) if not all(row[i].missing for row in self.rows)]
        rows = [[row[i] for i in nonempty] for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in nonempty], rows=rows)


def texts(*headings: str) -> list[Column]:
    """Return columns of text."""
    return [Column(heading) for heading in headings]


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(heading, number=True) for heading in headings]


METHOD = Column("method", code=True)

MISS_LEGEND = f"! more than two standard errors from the published mean (marked from {MIN_SEEDS_TO_JUDGE} seeds on)"
"""The legend of the mark in :func:`difference_cell`."""


def accuracy_cell(row: Row) -> Cell:
    """Return the mean of a method and its standard deviation."""
    return Cell(format_mean_std(row.mean, row.std), row.mean)


def published_cell(row: Row) -> Cell:
    """Return the published mean and standard deviation, with the name of their table."""
    published = row.published
    return (
        Cell(format_mean_std(published.mean, published.std), published.mean, note=published.table)
        if published
        else MISSING
    )


def difference_cell(row: Row) -> Cell:
    """Return the difference from the published mean, its standard error and mark (:data:`MISS_LEGEND`)."""
    if row.difference is None:
        return MISSING
    mark, note = ("! ", "more than two standard errors from the published mean") if row.is_outside_2se else ("", "")
    return Cell(mark + format_difference(row.difference), row.difference.mean, note=note)


def as_markdown(table: Table) -> str:
    """Return a table as Markdown.

    >>> table = Table([Column("method"), Column("accuracy", number=True)])
    >>> table.add("er_1", Cell("81.07 ± 2.5", strong=True))
    >>> print(as_markdown(table), end="")
    | method | accuracy |
    |---|---:|
    | er\\_1 | **81.07 ± 2.5** |
    """
    lines = [[escape_markdown(column.heading) for column in table.columns]]
    for row in table.rows:
        cell_texts = [escape_markdown(cell.text + cell.marks) for cell in row]
        lines.append([f"**{text}**" if cell.strong else text for text, cell in zip(cell_texts, row, strict=True)])
    heading, *others = ("|" + "|".join(f" {text} " for text in line) + "|\n" for line in lines)
    rule = "|" + "|".join("---:" if column.number else "---" for column in table.columns) + "|\n"
    return "".join([heading, rule, *others])


def escape_markdown(text: str) -> str:
    r"""Return text escaped for Markdown, in a cell of a table too.

    >>> print(escape_markdown("my_rows.csv[label=a|b,<i>]"), escape_markdown("er+gmed(alpha=1.0)"))
    my\_rows.csv\[label=a\|b,\<i\>\] er+gmed(alpha=1.0)
    >>> escape_markdown("< 0.0001")
    '< 0.0001'
    """
    return re.sub(r"([\\`*_\[\]>|~&$]|<(?! ))", r"\\\1", " ".join(text.split()))


def as_latex(table: Table, caption: str) -> str:
    r"""Return a table for ``booktabs`` with a caption in LaTeX; notes are in parentheses."""
    lines = [
        " & ".join(_latex_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)) + r" \\"
        for row in table.rows
    ]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{''.join('r' if column.number else 'l' for column in table.columns)}}}",
            r"\toprule",
            " & ".join(escape_latex(column.heading) for column in table.columns) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _latex_cell(column: Column, cell: Cell) -> str:
    if cell.missing:
        return "--"
    if column.number:
        mean, *deviation = cell.text.split(" ± ")
        marks = cell.marks.replace("*", r"\ast")
        parts = [rf"\mathbf{{{mean}}}" if cell.strong else mean, *deviation]
        text = "$" + r" \pm ".join(parts) + (f"^{{{marks}}}" if marks else "") + "$"
    else:
        text = escape_latex(cell.text + cell.marks)
        text = rf"\texttt{{{text}}}" if column.code else text
    return text + (rf" {{\scriptsize ({escape_latex(cell.note)})}}" if cell.note else "")


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: rf"\{character}" for character in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    r"""Return text escaped for LaTeX; characters that its fonts may lack become question marks.

    >>> print(escape_latex("a_b^2 & 50 % {x}"))
    a\_b\textasciicircum{}2 \& 50 \% \{x\}
    """
    return "".join(SPECIAL.get(c, c if c.isascii() and c.isprintable() else "?") for c in text)


def as_csv(table: Table) -> str:
    """Return the values of a table as CSV; missing values are empty."""
    names = [column.heading for column in table.columns]
    file = io.BytesIO()
    write_csv(file, names, ({n: cell.key for n, cell in zip(names, row, strict=True)} for row in table.rows))
    return file.getvalue().decode()


VERDICTS = {None: Cell(""), True: Cell("within 2 s.e."), False: Cell("outside 2 s.e.", strong=True)}


def markdown(results: Results) -> str:
    """Return the results as Markdown tables: every method with the paper's number, then the gains of editing."""
    rows = results.rows()
    measurements = numbers("seeds", "ours", "paper", "ours - paper ± s.e.")
    accuracies = Table([*texts("benchmark", "method"), *measurements, *texts("")])
    for row in rows:
        verdict = VERDICTS[row.difference.within if row.difference and row.n >= MIN_SEEDS_TO_JUDGE else None]
        difference = Cell(format_difference(row.difference))
        accuracies.add(row.benchmark, row.method, row.n, accuracy_cell(row), published_cell(row), difference, verdict)
    gains = Table(
        [
            *texts("benchmark", "gain of", "over"),
            *numbers("points"),
            *texts("95 % interval"),
            *numbers("p (one-tailed, paired t)", "d", "seeds"),
        ]
    )
    for row in rows:
        if row.gain is not None and not math.isnan(row.gain.p):
            g = row.gain
            formatted = f"{g.mean:+.2f}", f"{g.low:+.2f} to {g.high:+.2f}", format_p(g.p), f"{g.effect_size:.2f}"
            gains.add(row.benchmark, row.method, row.gain_over or "", *formatted, g.n)
    return as_markdown(accuracies) + "\n" + as_markdown(gains)
