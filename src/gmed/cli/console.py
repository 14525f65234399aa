"""Terminal output that commands share: tables on standard output, live progress on standard error."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType

import typer
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table as RichTable
from rich.text import Text

from gmed import engine
from gmed.callbacks import Callback
from gmed.cli.exit import EXIT_INTERRUPTED
from gmed.data import dataset as data
from gmed.engine import Event, RunSpec
from gmed.report.grouping import titles
from gmed.results import Failure
from gmed.results.formatting import first_line, format_duration
from gmed.results.tables import METHOD, MISSING, Cell, Column, Table, numbers


def render_table(table: Table, *, boxed: bool = False, gap: int = 2) -> RenderableType:
    """Return a table under its title, boxed or with a gap between columns; long text is wrapped, numbers never."""
    padding = (0, 1) if boxed else (0, gap, 0, 0)
    has_header = any(column.heading for column in table.columns)
    rich_table = RichTable(box=box.HEAVY_HEAD if boxed else None, padding=padding, show_header=has_header)
    for column in table.columns:
        rich_table.add_column(
            Text(column.heading),
            justify="right" if column.number else "left",
            overflow="fold",
            no_wrap=column.number,
        )
    for row in table.rows:
        rich_table.add_row(*map(_text, table.columns, row))
    return Group(Text(table.title), rich_table) if table.title else rich_table


def _text(column: Column, cell: Cell) -> RenderableType:
    """Render a cell; code gets spaces after commas (which the parser accepts) and is wrapped between its parts."""
    style = cell.color or ("bold" if cell.strong else "")
    if column.code:
        return _Code(cell.text.replace(",", ", ") + cell.marks, style)
    return Text(cell.text + cell.marks, style=style)


class _Code:
    """A name of a method, wrapped after a comma, after a bracket or before a plus, but never before a bracket."""

    def __init__(self, text: str, style: str) -> None:
        self.text, self.style = text, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(len(part.strip()) for part in self._parts()), len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self._parts():
            if lines[-1] and len(lines[-1] + part.rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(map(str.strip, lines)), style=self.style, overflow="fold")

    def _parts(self) -> list[str]:
        return re.split(r"(?<=, )|(?<=\()|(?<=.)(?=\+[a-z])", self.text)


def make_console(*, stderr: bool = False) -> Console:
    """Create a console that prints text verbatim: brackets in a path or an error are not markup."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def print_json(document: object) -> None:
    """Print a JSON document to standard output."""
    print(json.dumps(document, indent=2))


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """If the user interrupts the block, say what was saved and how to resume, then exit."""
    try:
        yield
    except KeyboardInterrupt:
        make_console(stderr=True).print(f"Stopped. {kept}")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def progress_bar(name: str, amount: ProgressColumn) -> Iterator[data.Progress]:
    """Yield a callback that shows a bar on standard error, or does nothing if that is not a terminal."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield data.no_progress
        return
    columns = (TextColumn(name), BarColumn(bar_width=30), amount, TextColumn("left"), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(name, total=None)

    def show(done: int, total: int | None) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        bar.stop()


class PacedLines:
    """When to print a progress line without a terminal: after 10 seconds, then less and less often."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.wait = 10.0

    def due(self) -> bool:
        """Return whether to print a line now; the time to the next doubles, up to ten minutes."""
        if time.monotonic() - self.last < self.wait:
            return False
        self.last, self.wait = time.monotonic(), min(2 * self.wait, 600.0)
        return True

    def times(self, share: float) -> str:
        """Return the time so far and, where it can be estimated from the share that is done, the time left."""
        elapsed = time.monotonic() - self.began
        left = f", about {format_duration(elapsed * (1 - share) / share)} left" if share > 0 else ""
        return f"after {format_duration(elapsed)}{left}"


class LiveProgress(Callback):
    """A bar over all runs and the mean so far of every method; plain lines if the output is not a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("runs"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.live: Live | None = None
        self.decoding: data.Progress | None = None
        self.decoding_bar = ExitStack()
        self.accuracies: dict[str, list[float]] = {}
        self.planned: dict[str, int] = {}
        self.running: dict[str, float] = {}
        self.finished = 0
        self.wait_announced = False
        self.pace = PacedLines()

    def on_data_progress(self, done: int, total: int | None) -> None:
        """Show the progress of decoding images."""
        if self.decoding is None:
            bar = progress_bar("decoding images", MofNCompleteColumn())
            self.decoding = self.decoding_bar.enter_context(bar)
        self.decoding(done, total)

    def on_start(self, todo: Sequence[RunSpec], kept: int) -> None:
        """Start the bar over the remaining runs."""
        self.decoding_bar.close()
        if kept:
            self.console.print(f"{count_runs(kept)} already in the store, {len(todo)} to run")
        if not todo:
            return
        for spec in todo:
            self.planned[spec.method.name] = self.planned.get(spec.method.name, 0) + 1
        (title,) = titles([todo[0].benchmark.name]).values()
        self.task = self.bar.add_task(title, total=len(todo))
        if self.console.is_terminal:
            self.live = Live(self._view(), console=self.console, refresh_per_second=5, transient=True)
            self.live.start()
        else:
            self.console.print(f"{title}: {count_runs(len(todo))}")

    def on_wait(self, runs: int) -> None:
        """Announce once that another sweep is working on the remaining runs."""
        if not self.wait_announced:
            self.console.print(f"another sweep is already working on {count_runs(runs)} of these; waiting for it")
        self.wait_announced = True

    def on_event(self, event: Event) -> None:
        """Record the progress or the end of a run."""
        if isinstance(event, engine.Progress):
            self.running[event.spec.key] = event.seen / event.total
        else:
            self.running.pop(event.spec.key, None)
            self.finished += 1
            if isinstance(event, engine.Finished):
                self.accuracies.setdefault(event.spec.method.name, []).append(event.result.final_accuracy)
            else:
                self.console.print(f"failed: {event.spec}: {first_line(event.error)}")
        self._refresh()

    def on_probe(self, spec: RunSpec) -> None:
        """Count a probe run, which has no result."""
        self.finished += 1
        self._refresh()

    def _refresh(self) -> None:
        self.bar.update(self.task, completed=self.finished + sum(self.running.values()))
        if self.live is not None:
            self.live.update(self._view())
        elif self.pace.due():
            planned = sum(self.planned.values())
            share = (self.finished + sum(self.running.values())) / planned
            self.console.print(f"  {self.finished} of {count_runs(planned)} {self.pace.times(share)}")

    def _view(self) -> Group:
        table = Table([replace(METHOD, heading="method so far"), *numbers("runs", "accuracy %")])
        for method, planned in self.planned.items():
            accuracies = self.accuracies.get(method, [])
            mean = f"{100 * sum(accuracies) / len(accuracies):.2f}" if accuracies else MISSING
            table.add(method, f"{len(accuracies)}/{planned}", mean)
        return Group(render_table(table), self.bar)

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.decoding_bar.close()
        if self.live is not None:
            self.live.stop()


def show_failure(console: Console, failure: Failure) -> None:
    """Print a run that failed, with the first line of its error."""
    console.print(f"failed: {failure.benchmark} {failure.method} seed {failure.seed}: {first_line(failure.error)}")


def count_runs(count: int) -> str:
    """Return a number of runs as text.

    >>> count_runs(1), count_runs(2)
    ('1 run', '2 runs')
    """
    return f"{count} run" if count == 1 else f"{count} runs"
