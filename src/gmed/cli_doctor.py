"""The command line's look at the installation: gmed doctor."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gmed.cli_options import StoreFile
from gmed.doctor import NOTE, PROBLEM, SOUND, examine
from gmed.experiment import default_store
from gmed.terminal import BAD_USAGE, DONE, make_console

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
        shown = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        shown.add_column(no_wrap=True)
        shown.add_column(no_wrap=True)
        shown.add_column(overflow="fold")
        said = ""
        for sign in signs:
            about, said = (sign.about if sign.about != said else ""), sign.about
            shown.add_row(about, Text(sign.state, style=COLOURS[sign.state]), sign.text)
        console = make_console()
        console.print(shown)
        console.print(f"\n{problems} problem{'s' * (problems != 1)}" if problems else "\nNo problems.")
    raise typer.Exit(BAD_USAGE if problems else DONE)
