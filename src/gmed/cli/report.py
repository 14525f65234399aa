"""The command for reports: gmed report."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from gmed.cli.console import make_console, progress_bar
from gmed.cli.options import Baseline, DataDir, Extension, StoreFile
from gmed.cli.results import require_results, with_baseline
from gmed.data.dataset import Progress
from gmed.engine.config import resolve_device
from gmed.engine.custom_model import ModelRef
from gmed.errors import UsageError
from gmed.experiment import default_store, outdated_note, stored_results
from gmed.io.files import check_output_path, write_bytes
from gmed.paper.artifacts.charts import require_folder, require_libraries
from gmed.report import collect, html, watch_edits
from gmed.report.grouping import without_tuning
from gmed.report.tables import csv_table, latex_table, markdown_tables
from gmed.results import Results


class Format(StrEnum):
    """The formats of a report."""

    html = "html"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


TABLES: dict[Format, tuple[str, Callable[[Results], str]]] = {
    Format.markdown: ("report.md", markdown_tables),
    Format.latex: ("report.tex", latex_table),
    Format.csv: ("report.csv", csv_table),
}


def report(
    benchmark: Annotated[str | None, typer.Argument(help="Only this benchmark")] = None,
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods")] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="Output folder")] = "report",
    form: Annotated[Format, typer.Option("--format", help="An HTML page, or tables for a paper")] = Format.html,
    baseline: Baseline = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser")] = False,
    gallery: Annotated[
        bool, typer.Option("--gallery", help="Rerun one seed per benchmark to show edited examples and losses (cached)")
    ] = False,
    device: Annotated[str, typer.Option(help="Device for the runs of --gallery: auto, cpu or cuda")] = "auto",
    data_dir: DataDir = None,
    store: StoreFile = None,
    extension: Extension = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Custom model that --gallery may build: net.py:small; may be repeated"),
    ] = None,
) -> None:
    """Create an HTML report of a store, or tables for a paper. The page is one self-contained file."""
    path, folder, console = store or default_store(), Path(out), make_console()
    if form is Format.html:
        require_libraries("reports")
    results, outdated = stored_results(path, benchmark, methods or [])
    note = outdated_note(path, outdated)
    require_results(results, benchmark, methods or [], note)
    results = with_baseline(results, baseline)
    if note:
        make_console(stderr=True).print(note, soft_wrap=True)
    if gallery and form is not Format.html:
        raise UsageError("--gallery requires the HTML format; omit --format or --gallery")
    name = "report.html" if form is Format.html else TABLES[form][0]
    file = folder / name
    require_folder(folder)
    check_output_path(file)
    if form is Format.html:
        for reference in model or []:
            ModelRef.from_user(reference)
        if gallery:
            _watch(results, path, device, Path(data_dir) if data_dir else None)
        contents = collect(
            results, outdated, path, benchmark, methods or [], data_dir=Path(data_dir) if data_dir else None
        )
        text = html(contents)
    else:
        text = TABLES[form][1](without_tuning(results))
    write_bytes(file, text.encode())
    console.print(f"wrote {file.resolve()} ({len(text.encode()) / 1000:,.0f} kB)", soft_wrap=True)
    if show and not webbrowser.open(file.resolve().as_uri()):
        console.print("no browser could be opened; open the file manually")


def _watch(results: Results, store: str, device: str, data_dir: Path | None) -> None:
    console = make_console(stderr=True)

    @contextmanager
    def show_progress(run: str) -> Iterator[Progress]:
        console.print(f"rerunning {run}", soft_wrap=True)
        with progress_bar("examples seen", MofNCompleteColumn()) as progress:
            yield progress

    device_type = resolve_device(device).type
    failed = watch_edits(results, store, device=device_type, data_dir=data_dir, shown=show_progress)
    for spec, error in failed.items():
        console.print(f"could not be rerun: {spec}: {error}")
