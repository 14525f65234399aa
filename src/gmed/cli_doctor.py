"""The command line's look at the installation: gmed doctor."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from gmed.cli_options import StoreFile
from gmed.doctor import NOTE, PROBLEM, SOUND, examine
from gmed.experiment import default_store
from gmed.results.tables import Cell, Table, texts
from gmed.terminal import BAD_USAGE, DONE, make_console
from gmed.terminal_table import render_table

COLOURS = {SOUND: "green", NOTE: "yellow", PROBLEM: "bold red"}


def add_doctor(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command("doctor")(_doctor)


def _doctor(
    store: StoreFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else")] = False,
) -> None:
    """Look at versions, device, threads, extras, data sets and the store; change nothing."""
    signs = examine(store or default_store())
    problems = sum(sign.state == PROBLEM for sign in signs)
    if as_json:
        print(json.dumps([asdict(sign) for sign in signs], indent=2))
    else:
        shown = Table(texts("", "", ""))
        said = ""
        for sign in signs:
            about, said = (sign.about if sign.about != said else ""), sign.about
            shown.add(about, Cell(sign.state, color=COLOURS[sign.state]), sign.text)
        console = make_console()
        console.print(render_table(shown))
        console.print(f"\n{problems} problem{'s' * (problems != 1)}" if problems else "\nNo problems.")
    raise typer.Exit(BAD_USAGE if problems else DONE)
