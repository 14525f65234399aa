"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from gmed.engine import load_extension


def _load(paths: list[str] | None) -> list[str] | None:
    for path in paths or []:
        load_extension(path)
    return paths


Extension = Annotated[
    list[str] | None,
    typer.Option("--extension", help="Python file that registers parts of your own; may be repeated", callback=_load),
]
"""Files are loaded as the option is read, before the command begins."""

DataDir = Annotated[
    str | None, typer.Option(help="Folder of the data set [$GMED_DATA, else the cache; MNIST: the packaged one]")
]

StoreFile = Annotated[
    str | None, typer.Option("--store", help="SQLite file of results [$GMED_STORE, else gmed.db here]")
]

Label = Annotated[str | None, typer.Option(help="Of a table: the column that is the label")]

Split = Annotated[str | None, typer.Option(help="Of your own data: by-class, by-time, by-column=NAME, none [by-class]")]

Drop = Annotated[list[str] | None, typer.Option(help="Of a table: a column to leave out; may be given again")]

Over = Annotated[str | None, typer.Option(help="Method to show gains over [each without its last part]")]

Model = Annotated[str | None, typer.Option(help="Model of your own: net.py:small or package.module:factory")]
