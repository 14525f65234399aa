"""Tables as Markdown, LaTeX and CSV. The terminal and the report's page write the same tables."""

from __future__ import annotations

import io
import re

from gmed.io.files import write_csv
from gmed.results.tables import Cell, Column, Table


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
