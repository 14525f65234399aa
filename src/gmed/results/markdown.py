from __future__ import annotations

import math

from gmed.results.results import Results
from gmed.results.table_formats import as_markdown
from gmed.results.tables import Cell, Table, accuracy_cell, numbers, published_cell, texts
from gmed.results.wording import apart, p_value

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
