"""A chart of the report: a Vega-Lite specification, its data, and the options that a reader can select.

Colors are names (``$ink``, ``$accent``) that the page replaces, so that one specification serves light and dark themes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gmed.paper.artifacts.charts import Record

if TYPE_CHECKING:
    import altair as alt

INK, MUTED, ACCENT, SECOND, GROUND = "$ink", "$muted", "$accent", "$second", "$ground"
CHOSEN, PALETTE = ["$chosen"], ["$palette"]
"""Placeholders of the selected methods and their colors."""

ROW = 18
"""Height in pixels of a row, in charts with a row for each method."""


@dataclass(frozen=True)
class Choice:
    """The options that a reader can select in a chart.

    Attributes
    ----------
    column
        The column of the data that has the option of each row.
    options
        All options.
    chosen
        The options that are selected first.
    several
        Whether several options can be selected at once.
    """

    column: str
    options: Sequence[str]
    chosen: Sequence[str]
    several: bool = False

    @classmethod
    def one_of(cls, column: str, options: Iterable[str], preferred: Iterable[str]) -> Choice:
        """Return the choice of one option, first of the preferred one that is available.

        >>> Choice.one_of("method", ["er", "mir"], ["gem", "mir"]).chosen
        ['mir']
        """
        available = list(options)
        return cls(column, available, [next((name for name in preferred if name in available), available[0])])


@dataclass(frozen=True)
class Chart:
    """A chart of the report.

    Attributes
    ----------
    name
        Its name, unique in a report, and that of saved files.
    title, caption
        Its title, and the caption below it.
    drawn
        The Altair chart of the data named ``rows``.
    records
        The data.
    choice
        The options that can be selected, if any.
    wide
        Whether it spans the full width of a page that has room for two charts side by side.
    """

    name: str
    title: str
    caption: str
    drawn: Any
    records: Sequence[Record]
    choice: Choice | None = None
    wide: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the chart as the page reads it."""
        spec = self.drawn.to_dict()
        for unneeded in ("$schema", "config"):
            spec.pop(unneeded, None)
        return {
            "name": self.name,
            "title": self.title,
            "spec": spec,
            "rows": columns(self.records),
            "choice": asdict(self.choice) if self.choice else None,
        }


def rows() -> alt.NamedData:
    """Return a reference to the data of a chart, which the page holds separately."""
    import altair as alt

    return alt.NamedData(name="rows")


def columns(records: Sequence[Record]) -> dict[str, Any]:
    """Return records by column, compactly: texts as indices into a list, numbers with five significant digits.

    >>> columns([{"method": "er", "x": 1.0}, {"method": "er", "x": float("nan")}])
    {'method': {'texts': ['er'], 'places': [0, 0]}, 'x': [1, None]}
    """
    by_column: dict[str, Any] = {}
    for name in records[0] if records else ():
        values = [record[name] for record in records]
        if any(isinstance(value, str) for value in values):
            texts = list(dict.fromkeys(values))
            indices = {text: index for index, text in enumerate(texts)}
            by_column[name] = {"texts": texts, "places": [indices[value] for value in values]}
        else:
            by_column[name] = [_round_value(value) for value in values]
    return by_column


def _round_value(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded


def inline_json(value: Any) -> str:
    r"""Return JSON for a script element, in which nothing can end that element or begin a comment.

    >>> print(inline_json({"error": "</script><!--"}))
    {"error":"\u003c/script\u003e\u003c!--"}
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def tooltip(fields: Iterable[tuple[str, str]]) -> list[alt.Tooltip]:
    """Return tooltips from pairs of a column and its title; numbers have two decimals."""
    import altair as alt

    return [
        alt.Tooltip(column, title=title, format=".2f") if column.endswith(":Q") else alt.Tooltip(column, title=title)
        for column, title in fields
    ]
