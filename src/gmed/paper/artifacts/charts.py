"""Style of charts, and their output as SVG, PNG, PDF and CSV, without a network or a browser.

The drawing libraries are an optional extra of the package, imported when something is drawn.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmed.errors import UsageError
from gmed.io.files import atomic_write, write_csv

if TYPE_CHECKING:
    import altair as alt
    from PIL.Image import Image

    from gmed.results.stats import Comparison

LIBRARIES = {
    "altair": "altair",
    "vl_convert": "vl-convert-python",
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "jinja2": "jinja2",
}
"""The drawing libraries: names of modules and of packages."""

COLORS = {
    "er": "#56b4e9",
    "er+gmed": "#0072b2",
    "mir": "#e69f00",
    "mir+gmed": "#d55e00",
}
"""Colors of methods, light for a base and dark for its edited form, from the color-blind safe set of Okabe and Ito."""

CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Colors of other categories, from the same set."""

SHAPES = ("circle", "square", "triangle-up", "diamond")
"""Shapes of marks, in addition to colors."""

INK, GRAY = "#222222", "#8c8c8c"

PIXELS_PER_INCH = 200

IMAGE_PREFIX = "data:image/png;base64,"

Record = dict[str, Any]


def gain_columns(comparison: Comparison | None) -> Record:
    """Return a comparison as columns of a CSV file, empty where there is none."""
    gain = comparison.gain if comparison else None
    return {
        "gain": gain.mean if gain else None,
        "gain_low": gain.low if gain else None,
        "gain_high": gain.high if gain else None,
        "gain_p": gain.p if gain else None,
        "gain_p_permutation": comparison.permutation_p if comparison else None,
        "gain_p_corrected": comparison.corrected_p if comparison else None,
    }


def spread_columns(mean: float, std: float) -> Record:
    """Return a mean and the ends of its error bar as columns, which are the mean itself for one run.

    >>> spread_columns(80.0, 1.5), spread_columns(80.0, math.nan)
    ({'mean': 80.0, 'low': 78.5, 'high': 81.5}, {'mean': 80.0, 'low': 80.0, 'high': 80.0})
    """
    margin = 0.0 if math.isnan(std) else std
    return {"mean": mean, "low": mean - margin, "high": mean + margin}


def split_by(records: Iterable[Record], column: str) -> dict[Any, list[Record]]:
    """Return the records of each value of a column, in order of first appearance.

    >>> split_by([{"x": 2}, {"x": 1}, {"x": 2}], "x")
    {2: [{'x': 2}, {'x': 2}], 1: [{'x': 1}]}
    """
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(record[column], []).append(record)
    return groups


def seed_counts(records: Iterable[Record]) -> str:
    """Return the numbers of seeds of the records, as text.

    >>> seed_counts([{"n": 20}, {"n": 10}, {"n": 20}])
    '10 or 20'
    """
    return " or ".join(map(str, sorted({record["n"] for record in records})))


def image_url(picture: Image) -> str:
    """Return an image as a data URL of a PNG file."""
    file = BytesIO()
    picture.save(file, "PNG", optimize=True)
    return IMAGE_PREFIX + b64encode(file.getvalue()).decode()


def require_libraries(purpose: str = "figures") -> None:
    """Raise an error if a drawing library is missing."""
    if missing := [package for module, package in LIBRARIES.items() if find_spec(module) is None]:
        raise UsageError(f"{purpose} need {', '.join(missing)}: pip install 'gmed[report]'")


def data(records: Iterable[Record]) -> alt.InlineData:
    """Return records as the inline data of a chart."""
    import altair as alt

    return alt.InlineData(values=list(records))


def panel_title(text: str) -> alt.TitleParams:
    """Return the title of one of several panels."""
    import altair as alt

    return alt.TitleParams(text, fontSize=12, fontWeight="normal", anchor="middle", offset=6)


def apply_theme(chart: Any, title: str, subtitle: Sequence[str]) -> Any:
    """Return a complete figure with its title, subtitle and the common style."""
    import altair as alt

    heading = alt.TitleParams(title, subtitle=list(subtitle), anchor="start", offset=14)
    return (
        chart.properties(title=heading, background="white", padding=12)
        .configure_title(color=INK, fontSize=14, subtitleColor="#555555", subtitleFontSize=11, subtitlePadding=4)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            titleFontWeight="normal",
            titleFontSize=11,
            gridColor="#ececec",
            labelFontSize=10,
        )
        .configure_legend(labelColor=INK, titleColor=INK, titleFontWeight="normal", labelFontSize=11)
        .configure_view(stroke=None)
    )


def require_folder(folder: Path) -> None:
    """Raise an error if files cannot be written to this folder."""
    probe = folder / ".gmed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: cannot be written ({error.strerror}); choose another --out")


def write(chart: Any, records: Sequence[Record], folder: Path, name: str) -> list[Path]:
    """Write the chart as SVG, PNG and PDF and its data as CSV, each file atomically, and return the paths."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix in ("svg", "png", "pdf", "csv"):
            path = folder / f"{name}.{suffix}"
            with atomic_write(path) as file:
                if suffix == "csv":
                    write_csv(file, list(records[0]), records)
                else:
                    buffer = StringIO() if suffix == "svg" else BytesIO()
                    chart.save(buffer, format=suffix, **({"ppi": PIXELS_PER_INCH} if suffix == "png" else {}))
                    content = buffer.getvalue()
                    file.write(content.encode() if isinstance(content, str) else content)
            written.append(path)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return written


RING = 620, "#d55e00"
"""The area and the color of the mark around a cell's number."""


def heat_map(
    data: alt.NamedData | alt.InlineData,
    x: tuple[str, str],
    y: tuple[str, str],
    value: tuple[str, str],
    scale: alt.Scale,
    *,
    number: str = "",
    white: str = "false",
    rings: Mapping[str, str] | None = None,
    gap: str = "white",
    tooltip: Sequence[alt.Tooltip] = (),
) -> Any:
    """Return cells shaded by a value, with a legend where the value has a title.

    Parameters
    ----------
    x, y, value
        Pairs of a column of the data and its title.
    scale
        The color scale of the values.
    number, white
        The format of the number in each cell, if any, and the condition under which it is white.
    rings
        Boolean columns that select the cells to mark, each with the shape of its mark.
    gap
        The color between cells.
    tooltip
        The tooltip of a cell.
    """
    import altair as alt

    axis = alt.Axis(labelAngle=0, ticks=False, domain=False, grid=False, labelOverlap=True)
    base = alt.Chart(data).encode(alt.X(f"{x[0]}:O", title=x[1], axis=axis), alt.Y(f"{y[0]}:O", title=y[1], axis=axis))
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
