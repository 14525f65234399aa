"""The command for watching sweeps: gmed watch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from gmed.cli.console import make_console, render_table
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK
from gmed.cli.options import StoreFile
from gmed.cli.results import require_store
from gmed.results import Store
from gmed.results.claims import RunStatus, SweepStatus, active_sweeps, count_ended, estimate_remaining
from gmed.results.formatting import first_line, format_duration
from gmed.results.store import Timing
from gmed.results.tables import METHOD, MISSING, Table, numbers, texts

POLL_SECONDS = 1.0
"""Seconds between two reads of the store."""

MAX_LINES = 12
"""The maximum number of running or failed runs shown, one line each."""


def watch(
    once: Annotated[bool, typer.Option("--once", help="Print the current status once and exit")] = False,
    store: StoreFile = None,
) -> None:
    """Show the progress of running sweeps. Live, until they end."""
    path, console = require_store(store), make_console()
    with Store(path) as run_store:
        sweeps, timings = active_sweeps(run_store), run_store.timings()
        if not sweeps:
            console.print(f"no sweep is running on {path}")
            raise typer.Exit(EXIT_OK)
        if once or not console.is_terminal:
            console.print(view(sweeps, timings))
            raise typer.Exit(EXIT_OK)
        seen = {(sweep.host, sweep.began): sweep for sweep in sweeps}
        try:
            with Live(view(sweeps, timings), console=console, refresh_per_second=2) as live:
                while sweeps:
                    time.sleep(POLL_SECONDS)
                    sweeps, timings = active_sweeps(run_store), run_store.timings()
                    seen |= {(sweep.host, sweep.began): sweep for sweep in sweeps}
                    if sweeps:
                        live.update(view(sweeps, timings))
        except KeyboardInterrupt:  # the sweep continues
            raise typer.Exit(EXIT_INTERRUPTED) from None
        ended = sum(count_ended(run_store, sweep) for sweep in seen.values())
    console.print(conclusion(ended, sum(len(sweep.runs) for sweep in seen.values())))


def conclusion(ended: int, planned: int) -> str:
    """Return a summary of how the watched sweeps ended.

    >>> conclusion(12, 12)
    'done; show the results with gmed table'
    >>> conclusion(9, 12)
    'stopped after 9 of 12 runs; repeat the same gmed run command to resume'
    """
    if ended < planned:
        return f"stopped after {ended} of {planned} runs; repeat the same gmed run command to resume"
    return "done; show the results with gmed table"


def view(sweeps: Sequence[SweepStatus], timings: Sequence[Timing]) -> Group:
    """Return a view of all sweeps: the progress of each, the means of its methods so far, and its current runs."""
    return Group(*(part for sweep in sweeps for part in _sweep_parts(sweep, timings)))


def _sweep_parts(sweep: SweepStatus, timings: Sequence[Timing]) -> list[RenderableType]:
    ended, remaining = sum(run.ended for run in sweep.runs), estimate_remaining(sweep, timings)
    elapsed = max(0.0, time.time() - sweep.began)
    estimate = "" if remaining is None else f", about {format_duration(remaining)} left, ends {ending(remaining)}"
    headline = Text(f"{sweep.host}: {ended} of {len(sweep.runs)} runs after {format_duration(elapsed)}{estimate}")
    failed = [(run, first_line(run.error)) for run in sweep.runs if run.error is not None]
    parts: list[RenderableType] = [headline]
    if running := [run for run in sweep.runs if not run.ended and run.done > 0]:
        parts.append(_progress_bars(running))
    parts += [
        Text(f"failed: {run.benchmark} {run.method} seed {run.seed}: {reason}") for run, reason in failed[:MAX_LINES]
    ]
    parts.append(_means(sweep.runs))  # the longest part is last: a terminal may truncate it
    return parts


def _means(runs: Sequence[RunStatus]) -> RenderableType:
    method_column = replace(METHOD, heading="method so far")
    table = Table([*texts("benchmark"), method_column, *numbers("runs", "accuracy %")])
    groups: dict[tuple[str, str], list[RunStatus]] = {}
    for run in runs:
        groups.setdefault((run.benchmark, run.method), []).append(run)
    for (benchmark, method), group in groups.items():
        accuracies = [run.accuracy for run in group if run.accuracy is not None]
        mean = f"{100 * fmean(accuracies):.2f}" if accuracies else MISSING
        table.add(benchmark, method, f"{sum(run.ended for run in group)}/{len(group)}", mean)
    return render_table(table)


def _progress_bars(runs: Sequence[RunStatus]) -> RenderableType:
    """Return a progress bar for each run, in a grid, because the cells of :class:`Table` are text."""
    rows = RichTable.grid(padding=(0, 2, 0, 0))
    for run in runs[:MAX_LINES]:
        bar = ProgressBar(total=1.0, completed=run.done, width=24)
        rows.add_row(Text(f"{run.method} seed {run.seed}"), bar, f"{100 * run.done:.0f}%")
    if len(runs) > MAX_LINES:
        rows.add_row(f"and {len(runs) - MAX_LINES} more", "", "")
    return rows


def ending(seconds: float, now: datetime | None = None) -> str:
    """Return the local time in ``seconds`` from now.

    >>> ending(3600, datetime(2026, 1, 1, 12, 30)), ending(100_000, datetime(2026, 1, 1, 12, 30))
    ('at 13:30', 'on Fri 2 Jan at 16:16')
    """
    now = now or datetime.now()
    then = now + timedelta(seconds=seconds)
    return f"at {then:%H:%M}" if then.date() == now.date() else f"on {then:%a} {then.day} {then:%b} at {then:%H:%M}"
