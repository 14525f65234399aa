"""A chart of the report: a Vega-Lite specification without its data, the data beside it, and what can be chosen.

Colours are names (``$ink``, ``$accent``) that the page replaces, so that one specification serves light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gmed.paper.artifacts.charts import Record

if TYPE_CHECKING:
    import altair as alt

INK, MUTED, ACCENT, SECOND, GROUND = "$ink", "$muted", "$accent", "$second", "$ground"
CHOSEN, PALETTE = ["$chosen"], ["$palette"]
"""The methods that are chosen, and a colour for each."""

ROW = 18
"""Pixels of a row of a chart with a row for each method."""


@dataclass(frozen=True)
class Choice:
    """What a reader chooses to see of a chart.

    Attributes
    ----------
    column
        The column that says which rows belong to which option.
    options
        What there is.
    chosen
        What is shown first; one, or several at once.
    """

    column: str
    options: Sequence[str]
    chosen: Sequence[str]
    several: bool = False


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes
    ----------
    name
        Unique in a report; files that are saved are called so.
    title, caption
        What it shows, and what a reader must know.
    drawn
        The Altair chart of the data named ``rows``.
    records
        The data.
    choice
        What can be chosen, if anything.
    wide
        Whether it takes the whole width of a page that has room for two side by side.
    """

    name: str
    title: str
    caption: str
    drawn: Any
    records: Sequence[Record]
    choice: Choice | None = None
    wide: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As the page reads it."""
        spec = self.drawn.to_dict()
        for unneeded in ("$schema", "config"):
            spec.pop(unneeded, None)
        choice = None
        if self.choice is not None:
            choice = {
                "column": self.choice.column,
                "options": list(self.choice.options),
                "chosen": list(self.choice.chosen),
                "several": self.choice.several,
            }
        return {
            "name": self.name,
            "title": self.title,
            "spec": spec,
            "rows": columns(self.records),
            "choice": choice,
        }


def rows() -> alt.NamedData:
    """The data of a chart, which the page has beside it."""
    import altair as alt

    return alt.NamedData(name="rows")


def columns(records: Sequence[Record]) -> dict[str, Any]:
    """Records column by column, which takes little room: texts as numbers of a list, numbers to five figures.

    >>> columns([{"method": "er", "x": 1.0}, {"method": "er", "x": float("nan")}])
    {'method': {'texts': ['er'], 'places': [0, 0]}, 'x': [1, None]}
    """
    found: dict[str, Any] = {}
    for name in records[0] if records else ():
        values = [record[name] for record in records]
        if any(isinstance(value, str) for value in values):
            texts = list(dict.fromkeys(values))
            place = {text: number for number, text in enumerate(texts)}
            found[name] = {"texts": texts, "places": [place[value] for value in values]}
        else:
            found[name] = [_short(value) for value in values]
    return found


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    figures = float(f"{value:.5g}")
    return int(figures) if figures.is_integer() else figures


def inline_json(value: Any) -> str:
    r"""JSON that can stand inside a script element: nothing in it can end that element or begin a comment.

    >>> print(inline_json({"error": "</script><!--"}))
    {"error":"\u003c/script\u003e\u003c!--"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def tooltip(fields: Iterable[tuple[str, str]]) -> list[alt.Tooltip]:
    """What is said of the mark under the pointer: columns and what they are called; numbers with two places."""
    import altair as alt

    return [
        alt.Tooltip(column, title=title, format=".2f") if column.endswith(":Q") else alt.Tooltip(column, title=title)
        for column, title in fields
    ]
