"""The command line of watching: gmed watch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from gmed.cli.console import DONE, EXIT_INTERRUPTED, make_console, render_table
from gmed.cli.options import StoreFile
from gmed.errors import UsageError
from gmed.experiment import default_store
from gmed.results import Store
from gmed.results.formatting import duration, first_line
from gmed.results.progress import RunStatus, SweepStatus, active_sweeps, estimate_remaining
from gmed.results.store import Timing
from gmed.results.tables import MISSING, Table, numbers, texts

EVERY = 1.0
"""Seconds between two looks."""

LINES = 12
"""Runs under way that are shown, a line each."""


def register_watch(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command("watch")(_watch)


def _watch(
    once: Annotated[bool, typer.Option("--once", help="Say how things stand, and end")] = False,
    store: StoreFile = None,
) -> None:
    """Watch the sweeps that compute into a store, from another terminal, until they end."""
    path, console = store or default_store(), make_console()
    if not Path(path).exists():
        raise UsageError(f"{path}: no results there yet; gmed run makes some")
    with Store(path) as opened:
        sweeps, timings = active_sweeps(opened), opened.timings()
        if not sweeps:
            console.print(f"no sweep is computing into {path}")
            raise typer.Exit(DONE)
        if once or not console.is_terminal:
            console.print(view(sweeps, timings))
            raise typer.Exit(DONE)
        try:
            with Live(view(sweeps, timings), console=console, refresh_per_second=2) as live:
                while sweeps:
                    time.sleep(EVERY)
                    sweeps, timings = active_sweeps(opened), opened.timings()
                    if sweeps:
                        live.update(view(sweeps, timings))
        except KeyboardInterrupt:  # the sweep goes on
            raise typer.Exit(EXIT_INTERRUPTED) from None
    console.print("done; gmed table shows the results")


def view(sweeps: Sequence[SweepStatus], timings: Sequence[Timing]) -> Group:
    """All sweeps: how far each is, its methods' means so far, and its runs under way."""
    return Group(*(part for sweep in sweeps for part in _one(sweep, timings)))


def _one(sweep: SweepStatus, timings: Sequence[Timing]) -> list[RenderableType]:
    ended, left = sum(run.ended for run in sweep.runs), estimate_remaining(sweep, timings)
    passed = max(0.0, time.time() - sweep.began)
    when = "" if left is None else f", about {duration(left)} left, ends {ending(left)}"
    head = Text(f"{sweep.host}: {ended} of {len(sweep.runs)} runs after {duration(passed)}{when}")
    failed = [(run, first_line(run.error)) for run in sweep.runs if run.error is not None]
    parts: list[RenderableType] = [head]
    if working := [run for run in sweep.runs if not run.ended and run.done > 0]:
        parts.append(_working(working))
    parts += [Text(f"failed: {run.benchmark} {run.method} seed {run.seed}: {why}") for run, why in failed[:LINES]]
    parts.append(_means(sweep.runs))  # the longest last: a terminal may not have room for all of it
    return parts


def _means(runs: Sequence[RunStatus]) -> RenderableType:
    table = Table([*texts("benchmark", "method so far"), *numbers("runs", "accuracy %")])
    kinds: dict[tuple[str, str], list[RunStatus]] = {}
    for run in runs:
        kinds.setdefault((run.benchmark, run.method), []).append(run)
    for (benchmark, method), own in kinds.items():
        found = [run.accuracy for run in own if run.accuracy is not None]
        mean = f"{100 * fmean(found):.2f}" if found else MISSING
        table.add(benchmark, method, f"{sum(run.ended for run in own)}/{len(own)}", mean)
    return render_table(table)


def _working(runs: Sequence[RunStatus]) -> RenderableType:
    """A bar for each run: no table of results, but rows of what is drawn."""
    rows = RichTable.grid(padding=(0, 2, 0, 0))
    for run in runs[:LINES]:
        bar = ProgressBar(total=1.0, completed=run.done, width=24)
        rows.add_row(Text(f"{run.method} seed {run.seed}"), bar, f"{100 * run.done:.0f} %")
    if len(runs) > LINES:
        rows.add_row(f"and {len(runs) - LINES} more", "", "")
    return rows


def ending(seconds: float, now: datetime | None = None) -> str:
    """When something ends that takes so long from now, on the clock here.

    >>> ending(3600, datetime(2026, 1, 1, 12, 30)), ending(100_000, datetime(2026, 1, 1, 12, 30))
    ('at 13:30', 'on Fri 2 Jan at 16:16')
    """
    now = now or datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"at {then:%H:%M}" if then.date() == now.date() else f"on {then:%a} {then.day} {then:%b} at {then:%H:%M}"
