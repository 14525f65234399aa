"""Commands for data sets: gmed data, data fetch, data verify, data remove."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, MofNCompleteColumn

from gmed.cli.console import make_console, progress_bar, render_table, resumable
from gmed.cli.exit import EXIT_OK, EXIT_USAGE
from gmed.cli.options import DataDir
from gmed.data.registry import DATASETS, get_dataset_info
from gmed.errors import DataError
from gmed.results.tables import Table, texts

data_app = typer.Typer(rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="mnist, cifar10, cifar100 or mini-imagenet")]


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List the data sets and where they are, or how to get them."""
    if context.invoked_subcommand:
        return
    table = Table(texts("name", "images", "disk"))
    for entry in DATASETS.values():
        table.add(entry.name, entry.images, entry.disk)
    console = make_console()
    console.print(render_table(table))
    console.print()
    for entry in DATASETS.values():
        try:
            console.print(f"{entry.name} is in {entry.find(None)}", soft_wrap=True)
        except DataError as missing:
            console.print(str(missing))


@data_app.command("fetch")
def data_fetch(name: Name) -> None:
    """Download a data set into the cache. An interrupted download resumes."""
    with resumable("Run the same command again to resume."), progress_bar(name, DownloadColumn()) as progress:
        folder = get_dataset_info(name).fetch(progress)
    make_console().print(f"{name} is in {folder}", soft_wrap=True)


@data_app.command("verify")
def data_verify(
    name: Annotated[str | None, typer.Argument(help="The data set [all that are available]")] = None,
    data_dir: DataDir = None,
) -> None:
    """Read and check every file of a data set."""
    folder = Path(data_dir) if data_dir else None
    console, failed = make_console(), False
    for entry in [get_dataset_info(name)] if name else DATASETS.values():
        try:
            location = entry.find(folder)
        except DataError:
            if name:
                raise
            console.print(f"{entry.name}: not found, skipped")
            continue
        try:
            with progress_bar(entry.name, MofNCompleteColumn()) as progress:
                dataset = entry.verify(folder, progress)
        except DataError as error:
            print(f"gmed: {error}", file=sys.stderr)
            failed = True
        else:
            images = f"{len(dataset.y_train):,} + {len(dataset.y_test):,} images, {dataset.num_classes} classes"
            console.print(f"{entry.name}: valid, {images}, in {location}", soft_wrap=True)
    raise typer.Exit(EXIT_USAGE if failed else EXIT_OK)


@data_app.command("remove")
def data_remove(name: Name) -> None:
    """Remove the downloaded or decoded files of a data set from the cache; your own folders are not touched."""
    removed = get_dataset_info(name).remove()
    for path in removed:
        make_console().print(f"removed {path}", soft_wrap=True)
    if not removed:
        make_console().print(f"The cache has no files of {name}.")
