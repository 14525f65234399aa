from __future__ import annotations

import math

from gmed.results.results import Results


def markdown(results: Results) -> str:
    """The results as Markdown tables: every method beside the paper's number, then the gains of editing."""
    rows = results.rows()
    parts = [
        "| benchmark | method | seeds | ours | paper | ours - paper ± s.e. | |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        paper = f"{row.published.mean:.2f} ± {row.published.std:.1f}" if row.published else ""
        apart = f"{row.difference.mean:+.2f} ± {row.difference.error:.2f}" if row.difference else ""
        verdict = "" if row.difference is None else "within 2 s.e." if row.difference.within else "**outside 2 s.e.**"
        parts.append(
            f"| {row.benchmark} | {row.method} | {row.n} | {row.mean:.2f} ± {row.std:.1f} "
            f"| {paper} | {apart} | {verdict} |"
        )
    parts += [
        "",
        "| benchmark | gain of | over | points | 95 % interval | p (one-tailed, paired t) | d | seeds |",
        "|---|---|---|---:|---|---:|---:|---:|",
    ]
    for row in rows:
        if row.gain is not None and not math.isnan(row.gain.p):
            g = row.gain
            p = "< 0.0001" if g.p < 0.0001 else f"{g.p:.4f}"
            parts.append(
                f"| {row.benchmark} | {row.method} | {row.gain_over} | {g.mean:+.2f} "
                f"| {g.low:+.2f} to {g.high:+.2f} | {p} | {g.effect_size:.2f} | {g.n} |"
            )
    return "\n".join(parts) + "\n"
