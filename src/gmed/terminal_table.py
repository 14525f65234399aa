"""Tables as a terminal shows them."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from gmed.results.tables import Cell, Column, Table


def render_table(table: Table, *, boxed: bool = False, gap: int = 2) -> RenderableType:
    """Return a table under its title: in a box, or with a gap between columns; long text is broken, numbers never."""
    padding = (0, 1) if boxed else (0, gap, 0, 0)
    headed = any(column.heading for column in table.columns)
    made = RichTable(box=box.HEAVY_HEAD if boxed else None, padding=padding, show_header=headed)
    for column in table.columns:
        made.add_column(
            Text(column.heading),
            justify="right" if column.number else "left",
            overflow="fold",
            no_wrap=column.number,
        )
    for row in table.rows:
        made.add_row(*map(_text, table.columns, row))
    return Group(Text(table.title), made) if table.title else made


def _text(column: Column, cell: Cell) -> Text:
    """What a cell shows; spaces at which a name can be broken may be typed, too."""
    text = cell.text.replace(",", ", ") if column.code else cell.text
    return Text(text + cell.marks, style=cell.color or ("bold" if cell.strong else ""))
