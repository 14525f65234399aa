"""The report as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from gmed._version import __version__
from gmed.report.charts.chart import inline_json
from gmed.report.data import ReportData
from gmed.report.tables import LEVELS, describe_correction
from gmed.results.formatting import first_line
from gmed.results.stats import describe_levels
from gmed.results.tables import MISSING, Cell, Column, Table, numbers, texts

TITLE = "GMED report"

GAINS = "number of methods with a significant gain over their baseline, out of those compared"
"""Explanation of the column that counts significant gains."""

VEGA_ENTRY = "window.vegaEmbed = vegaEmbed;"
"""Script that exports the function the page needs from the bundle of Vega, Vega-Lite and Vega-Embed."""


def html(contents: ReportData) -> str:
    """Return the report as an HTML page.

    The template escapes everything from a store or a file name, and a content security policy in the page forbids
    all connections, and all scripts but its own two.
    """
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gmed.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": breakable,
        "first_line": first_line,
        "inline_json": lambda value: markupsafe.Markup(inline_json(value)),
    }
    templates, vega = files("gmed.report") / "templates", vega_bundle()
    script = (templates / "report.js").read_text(encoding="utf-8")
    charts = [*([contents.gains] if contents.gains else []), *(c for s in contents.sections for c in s.charts)]
    return environment.get_template("report.html").render(
        report=contents,
        title=TITLE,
        version=__version__,
        made=datetime.now(UTC).strftime("%-d %B %Y"),
        legend=f"Stars: one-tailed paired t-test, {describe_correction(contents.compared)} ({describe_levels(LEVELS)})."
        if contents.compared
        else "",
        glance=glance(contents),
        environments=environment_table(contents),
        charts=[chart.to_dict() for chart in charts],
        policy=policy(vega, script),
        style=markupsafe.Markup((templates / "report.css").read_text(encoding="utf-8")),
        vega=markupsafe.Markup(vega),
        script=markupsafe.Markup(script),
    )


@cache
def vega_bundle() -> str:
    """Return the drawing libraries as one script that can be inlined in a page."""
    import vl_convert

    return vl_convert.javascript_bundle(VEGA_ENTRY).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def policy(*scripts: str) -> str:
    """Return the content security policy: run these scripts, show inlined content, and connect to nothing.

    >>> policy("1")
    "default-src 'none'; script-src 'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s=' 'unsafe-eval'; ..."
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def breakable(name: str) -> Any:
    """Return an escaped name that may be broken between its parts.

    >>> print(breakable("er+gmed(alpha=1.0,<b>)"))
    er<wbr>+gmed(<wbr>alpha=1.0,<wbr>&lt;b&gt;)
    """
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[(,/_])|(?=[+\[])", name)
    return Markup("<wbr>").join(escape(part) for part in parts)


def glance(contents: ReportData) -> Table:
    """Return the summary table with a row for each benchmark."""
    table = Table(
        [
            Column("benchmark"),
            Column("runs", True, "finished"),
            *numbers("methods"),
            Column("best method", note="of the online methods (iid-* excluded); several if tied"),
            Column("accuracy, %", True, "mean over seeds"),
            Column("significant gains", True, GAINS),
        ],
        name="glance-table",
    )
    for section in contents.sections:
        if not section.rows:
            continue
        best = [row for row in section.rows if row.method in section.best]
        significant = sum(bool(comparison.marks) for comparison in section.compared)
        table.add(
            Cell(section.title, section.title, note=section.benchmark),
            len(section.runs),
            len(section.rows),
            ", ".join(section.best) or MISSING,
            Cell(f"{best[0].mean:.2f}", best[0].mean) if best else MISSING,
            Cell(f"{significant} of {len(section.compared)}", significant) if section.compared else MISSING,
        )
    return table


def environment_table(contents: ReportData) -> Table:
    """Return a table with a row for each combination of versions and devices."""
    names = list(dict.fromkeys(name for environment, _ in contents.environments for name in environment))
    table = Table([*texts(*names), *numbers("runs")], name="environments")
    for environment, count in contents.environments:
        table.add(*(environment.get(name, MISSING) for name in names), count)
    return table
