from __future__ import annotations

import math
import re

from gmed.results.results import Results
from gmed.results.wording import apart, p_value, spread


def plain(text: str) -> str:
    r"""Return text that Markdown shows as it is, in a cell of a table too.

    >>> print(plain("my_rows.csv[label=a|b,<i>]"), plain("er+gmed(alpha=1.0)"))
    my\_rows.csv\[label=a\|b,\<i\>\] er+gmed(alpha=1.0)
    """
    return re.sub(r"([\\`*_\[\]<>|~&$])", r"\\\1", " ".join(text.split()))


def markdown(results: Results) -> str:
    """The results as Markdown tables: every method beside the paper's number, then the gains of editing."""
    rows = results.rows()
    parts = [
        "| benchmark | method | seeds | ours | paper | ours - paper ± s.e. | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        paper = spread(row.published.mean, row.published.std) if row.published else "-"
        verdict = {None: "", True: "within 2 s.e.", False: "**outside 2 s.e.**"}
        within = verdict[row.difference.within if row.difference else None]
        ours = spread(row.mean, row.std)
        parts.append(
            f"| {plain(row.benchmark)} | {plain(row.method)} | {row.n} "
            f"| {ours} | {paper} | {apart(row.difference)} | {within} |"
        )
    parts += [
        "",
        "| benchmark | gain of | over | points | 95 % interval | p (one-tailed, paired t) | d | seeds |",
        "|---|---|---|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        if row.gain is not None and not math.isnan(row.gain.p):
            g = row.gain
            parts.append(
                f"| {plain(row.benchmark)} | {plain(row.method)} | {plain(row.gain_over or '')} | {g.mean:+.2f} "
                f"| {g.low:+.2f} to {g.high:+.2f} | {p_value(g.p)} | {g.effect_size:.2f} | {g.n} |"
            )
    return "\n".join(parts) + "\n"
