from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gmed.studies.charts import INK

if TYPE_CHECKING:
    import altair as alt

RING = 620, "#d55e00"
"""The area and the color of the mark around a cell's number."""


def heat_map(
    data: alt.NamedData | alt.InlineData,
    across: tuple[str, str],
    down: tuple[str, str],
    value: tuple[str, str],
    scale: alt.Scale,
    *,
    number: str = "",
    white: str = "false",
    rings: Mapping[str, str] | None = None,
    gap: str = "white",
    tooltip: Sequence[alt.Tooltip] = (),
) -> Any:
    """Return cells that are shaded by a value, with a legend where the value has a title.

    Parameters
    ----------
    across, down, value
        A column of the data and its title, each.
    scale
        From values to shades.
    number, white
        The format of the number in each cell, if it has one, and the condition under which it is white.
    rings
        Columns that say which cells are marked, each with the shape of its mark.
    gap
        The color between cells.
    tooltip
        What is shown of a cell that is pointed at.
    """
    import altair as alt

    axis = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, labelOverlap=True)
    base = alt.Chart(data).encode(
        alt.X(f"{across[0]}:O", title=across[1], axis=axis), alt.Y(f"{down[0]}:O", title=down[1], axis=axis)
    )
    legend = alt.Legend(title=value[1], gradientLength=140) if value[1] else None
    shade = alt.Color(f"{value[0]}:Q", scale=scale, legend=legend)
    layers = [base.mark_rect(stroke=gap, strokeWidth=0.5).encode(shade, tooltip=list(tooltip))]
    if number:
        ink = alt.condition(white, alt.value("white"), alt.value(INK))
        layers.append(base.mark_text(fontSize=10).encode(alt.Text(f"{value[0]}:Q", format=number), color=ink))
    size, color = RING
    for column, shape in (rings or {}).items():
        marked = base.transform_filter(f"datum.{column}")
        layers.append(marked.mark_point(shape=shape, size=size, color=color, strokeWidth=2, opacity=1))
    return alt.layer(*layers)
