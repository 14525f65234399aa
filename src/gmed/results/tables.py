"""A table of results: what its columns and cells say, whatever format it is written in."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gmed.io.files import write_csv
from gmed.results.formatting import apart, p_value, spread
from gmed.results.results import Results, Row


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes
    ----------
    number
        Whether it holds numbers, which are aligned right and never broken.
    note
        What the heading means.
    code
        Whether it holds names of methods, as they are typed.
    """

    heading: str
    number: bool = False
    note: str = ""
    code: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes
    ----------
    text
        What is shown.
    value
        What the column is sorted by; ``nan`` is last either way.
    strong
        Whether it stands out.
    marks
        Marks of significance behind the text.
    note
        What is said of it besides, where there is room.
    color
        The color of the text, where there are colors.
    """

    text: str
    value: float | str = math.nan
    strong: bool = False
    marks: str = ""
    note: str = ""
    color: str = ""

    @property
    def missing(self) -> bool:
        """Whether nothing is known."""
        return self.text == "-"

    @property
    def key(self) -> float | str:
        """What the column is sorted by; empty where there is nothing."""
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
        """Add a row; text and whole numbers are cells that are sorted by themselves."""
        self.rows.append([cell if isinstance(cell, Cell) else Cell(str(cell), cell) for cell in cells])

    def without_empty_columns(self) -> Table:
        """Return the same but for columns in which nothing is known.

        >>> made = Table([Column("a"), Column("b")])
        >>> made.add(1, MISSING)
        >>> [column.heading for column in made.without_empty_columns().columns]
        ['a']
        """
        known = [i for i in range(len(self.columns)) if not all(row[i].missing for row in self.rows)]
        rows = [[row[i] for i in known] for row in self.rows]
        return replace(self, columns=[self.columns[i] for i in known], rows=rows)


def texts(*headings: str) -> list[Column]:
    """Return columns of text."""
    return [Column(heading) for heading in headings]


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(heading, number=True) for heading in headings]


METHOD = Column("method", code=True)


def accuracy_cell(row: Row) -> Cell:
    """Return the mean of a method and its standard deviation."""
    return Cell(spread(row.mean, row.std), row.mean)


def published_cell(row: Row) -> Cell:
    """Return the published mean and standard deviation, with the table they stand in."""
    found = row.published
    return Cell(spread(found.mean, found.std), found.mean, note=found.table) if found else MISSING


def difference_cell(row: Row) -> Cell:
    """Return how far ours is from the published mean, with its standard error; a miss begins with ``!``."""
    if row.difference is None:
        return MISSING
    mark, note = ("! ", "more than two standard errors from the published mean") if row.missed else ("", "")
    return Cell(mark + apart(row.difference), row.difference.mean, note=note)


def as_markdown(table: Table) -> str:
    """Return a table as Markdown.

    >>> made = Table([Column("method"), Column("accuracy", number=True)])
    >>> made.add("er_1", Cell("81.07 ± 2.5", strong=True))
    >>> print(as_markdown(made), end="")
    | method | accuracy |
    |---|---:|
    | er\\_1 | **81.07 ± 2.5** |
    """
    lines = [[escape_markdown(column.heading) for column in table.columns]]
    for row in table.rows:
        shown = [escape_markdown(cell.text + cell.marks) for cell in row]
        lines.append([f"**{text}**" if cell.strong else text for text, cell in zip(shown, row, strict=True)])
    heading, *others = ("|" + "|".join(f" {text} " for text in line) + "|\n" for line in lines)
    rule = "|" + "|".join("---:" if column.number else "---" for column in table.columns) + "|\n"
    return "".join([heading, rule, *others])


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it is, in a cell of a table too.

    >>> print(escape_markdown("my_rows.csv[label=a|b,<i>]"), escape_markdown("er+gmed(alpha=1.0)"))
    my\_rows.csv\[label=a\|b,\<i\>\] er+gmed(alpha=1.0)
    >>> escape_markdown("< 0.0001")
    '< 0.0001'
    """
    return re.sub(r"([\\`*_\[\]>|~&$]|<(?! ))", r"\\\1", " ".join(text.split()))


def as_latex(table: Table, caption: str) -> str:
    r"""Return a table for ``booktabs`` with a caption, which is LaTeX already; notes stand in brackets."""
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
        shown = "$" + r" \pm ".join(parts) + (f"^{{{marks}}}" if marks else "") + "$"
    else:
        shown = escape_latex(cell.text + cell.marks)
        shown = rf"\texttt{{{shown}}}" if column.code else shown
    return shown + (rf" {{\scriptsize ({escape_latex(cell.note)})}}" if cell.note else "")


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: rf"\{character}" for character in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX prints as it is; what its fonts may lack becomes a question mark.

    >>> print(escape_latex("a_b^2 & 50 % {x}"))
    a\_b\textasciicircum{}2 \& 50 \% \{x\}
    """
    return "".join(SPECIAL.get(c, c if c.isascii() and c.isprintable() else "?") for c in text)


def as_csv(table: Table) -> str:
    """Return the values of a table as CSV; what is missing is empty."""
    names = [column.heading for column in table.columns]
    file = io.BytesIO()
    write_csv(file, names, ({n: cell.key for n, cell in zip(names, row, strict=True)} for row in table.rows))
    return file.getvalue().decode()


VERDICTS = {None: Cell(""), True: Cell("within 2 s.e."), False: Cell("outside 2 s.e.", strong=True)}


def markdown(results: Results) -> str:
    """The results as Markdown tables: every method beside the paper's number, then the gains of editing."""
    rows = results.rows()
    shown = numbers("seeds", "ours", "paper", "ours - paper ± s.e.")
    found = Table([*texts("benchmark", "method"), *shown, *texts("")])
    for row in rows:
        verdict = VERDICTS[row.difference.within if row.difference else None]
        difference = Cell(apart(row.difference))
        found.add(row.benchmark, row.method, row.n, accuracy_cell(row), published_cell(row), difference, verdict)
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
            said = f"{g.mean:+.2f}", f"{g.low:+.2f} to {g.high:+.2f}", p_value(g.p), f"{g.effect_size:.2f}"
            gains.add(row.benchmark, row.method, row.gain_over or "", *said, g.n)
    return as_markdown(found) + "\n" + as_markdown(gains)
