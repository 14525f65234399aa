"""Terminal output: live progress on standard error, tables of results on standard output."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType

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
from gmed.data import dataset as data
from gmed.engine import BENCHMARKS, Event, RunSpec
from gmed.engine.bench import Speed
from gmed.engine.grammar import format_value
from gmed.paper import quantities
from gmed.paper.artifacts import ArtifactResult
from gmed.paper.plan import QUICK_WARNING
from gmed.paper.status import ArtifactStatus
from gmed.paper.tables import Reproduction
from gmed.report.grouping import titles
from gmed.results import Failure, Results
from gmed.results.comparisons import Comparison, describe_levels
from gmed.results.formatting import first_line, format_duration, format_gain, format_mean_std, format_number, format_p
from gmed.results.metrics import Metrics
from gmed.results.tables import (
    METHOD,
    MISS_LEGEND,
    MISSING,
    Cell,
    Column,
    Table,
    accuracy_cell,
    difference_cell,
    numbers,
    published_cell,
    texts,
)
from gmed.tuning import TuningResult


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
    """Render a cell; code gets spaces after commas, which users may type, and is wrapped between its parts."""
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


@contextmanager
def progress_bar(name: str, amount: ProgressColumn) -> Iterator[data.Progress]:
    """Yield a callback that shows a bar on standard error, or one that does nothing if that is no terminal."""
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
    """When to print a line of progress where there is no terminal: after 10 seconds, then ever more rarely."""

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
    """A bar over all runs and the mean so far of every method; plain lines if the output is no terminal."""

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
        """Start the bar over the runs to compute."""
        self.decoding_bar.close()
        if kept:
            self.console.print(f"{_runs(kept)} already in the store, {len(todo)} to compute")
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
            self.console.print(f"{title}: {_runs(len(todo))}")

    def on_wait(self, runs: int) -> None:
        """Announce once that another sweep is computing the remaining runs."""
        if not self.wait_announced:
            self.console.print(f"another sweep is already computing {_runs(runs)} of these; waiting for it")
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
            self.console.print(f"  {self.finished} of {_runs(planned)} {self.pace.times(share)}")

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


def show_results(console: Console, results: Results) -> None:
    """Print a table per benchmark: measured and published accuracy, their difference, and the gains of editing."""
    all_rows = results.rows()
    short = titles([row.benchmark for row in all_rows])
    for benchmark in dict.fromkeys(row.benchmark for row in all_rows):
        rows = [row for row in all_rows if row.benchmark == benchmark]
        compared = any(row.published for row in rows) or benchmark in BENCHMARKS
        difference = " (difference ± s.e.)" if compared else ""
        title = f"{short[benchmark]}: final accuracy %, mean ± standard deviation{difference}"
        paper_headings = ("paper", "ours - paper") if compared else ()
        table = Table([METHOD, *numbers("n", "ours", *paper_headings)], title)
        for row in rows:
            paper_cells = (published_cell(row), difference_cell(row)) if compared else ()
            table.add(row.method, row.n, accuracy_cell(row), *paper_cells)
        console.print(render_table(table, boxed=True))
        if any(row.is_outside_2se for row in rows):
            console.print(MISS_LEGEND)
        gains = [(row, row.gain) for row in rows if row.gain is not None]
        for row, gain in gains:
            console.print(f"{row.method} over {row.gain_over}: {format_gain(gain)}")
        if gains:
            console.print("(paired by seed; p: one-tailed t-test; d: mean / standard deviation)")
    for failure in results.failures:
        _show_failure(console, failure)


MAX_TUNING_COLUMNS = 7
"""Number of values of the second parameter up to which two are shown by row and column."""


def show_tuning(console: Console, tuned: TuningResult) -> None:
    """Print the held-out accuracy over the grid and of the baselines, and what to know about the choice.

    Two parameters of one baseline are shown by row and column, others as a list.
    """
    best = max(tuned.scores.values())
    title = f"{tuned.benchmark} {tuned.method}: held-out accuracy % of the first tasks, seeds: {tuned.seeds}"
    cells = {point: Cell(f"{score:.2f}", score, marks="*" * (score == best)) for point, score in tuned.scores.items()}
    plain = {name: f"{score:.2f}" for name, score in tuned.baselines.items()}
    first, others = (list(dict.fromkeys(part)) for part in zip(*((p[0], p[1:]) for p in cells), strict=True))
    rows: list[list[Cell | str]]
    if len(tuned.parameters) == 2 and len(others) <= MAX_TUNING_COLUMNS and len(plain) == 1:
        headings = [" \\ ".join(tuned.parameters), *(_value(second) for (second,) in others)]
        rows = [[name, score, *[MISSING] * (len(others) - 1)] for name, score in plain.items()]
        rows += [[_value(value), *(cells[value, *other] for other in others)] for value in first]
    else:
        headings = [*tuned.parameters, "accuracy"]
        rows = [[name, *[MISSING] * (len(tuned.parameters) - 1), score] for name, score in plain.items()]
        rows += [[*map(_value, point), cell] for point, cell in cells.items()]
    table = Table(numbers(*headings), title)
    for row in rows:
        table.add(*row)
    console.print(render_table(table))
    point = max(tuned.scores, key=lambda point: tuned.scores[point])
    best_values = ", ".join(f"{name} = {_value(value)}" for name, value in zip(tuned.parameters, point, strict=True))
    tied = sum(score == best for score in tuned.scores.values())
    if tied == len(tuned.scores) > 1:
        console.print("All candidates have the same score: there are too few held-out examples to choose one.")
    chosen = "chosen" if tied == 1 else f"best; the first of these {tied} is chosen"
    use = f" Use it as '{tuned.method}(tuned)'." if tuned.recommended == tuned.chosen else ""
    console.print(f"* {chosen}: {best_values}.{use}")
    for note in tuned.notes:
        console.print(f"! {note}")
    if tuned.failures:
        console.print(f"{_runs(len(tuned.failures))} failed; diverged runs count as 0, others must be run again")


def _value(value: object) -> str:
    """Return the value of a parameter as briefly as possible."""
    return f"{value:g}" if type(value) in (int, float) else format_value(value)


MATRIX_METRICS = "final", "pooled", "forgetting", "backward_transfer", "forward_transfer", "anytime", "worst_case"
ONLINE_METRICS = "prequential", "forward_passes", "backward_passes", "seconds", "overhead", "overhead_mb"
"""Metrics in display order: those of the accuracy matrix, and those of training."""

IN_PERCENT = {*MATRIX_METRICS, "prequential"}


def show_metrics(console: Console, results: Results) -> None:
    """Print the mean of each metric over seeds, and how to measure those that are missing."""
    short = titles([run.benchmark for run in results.runs])
    for benchmark in short:
        by_method: dict[str, list[Metrics]] = {}
        for run in results.runs:
            if run.benchmark == benchmark:
                by_method.setdefault(run.method, []).append(Metrics.of(run))
        headlines = (
            "means in %",
            "prequential accuracy in %, passes per example of the stream, seconds of training, memory",
        )
        for title, names in zip(headlines, (MATRIX_METRICS, ONLINE_METRICS), strict=True):
            headings = (name.replace("_", "\n") for name in ("n", *names))
            table = Table([METHOD, *numbers(*headings)], f"{short[benchmark]}: {title}")
            for method, runs in by_method.items():
                table.add(method, len(runs), *(_mean(runs, name) for name in names))
            console.print(render_table(table, gap=1))
    older = sum(run.untrained is None or run.passes is None for run in results.runs)
    if older:
        note = "older runs do not record forward transfer and passes"
        console.print(f"{note} ({_runs(older)});\n  recompute them with gmed run --rerun")
    if any(run.prequential is None for run in results.runs):
        console.print("measure prequential accuracy with gmed run --prequential")


def _mean(runs: Sequence[Metrics], name: str) -> str:
    mean = sum(getattr(run, name) for run in runs) / len(runs)
    return "-" if math.isnan(mean) else f"{100 * mean if name in IN_PERCENT else mean:.2f}"


def show_reproduction(console: Console, reproduction: Reproduction, *, all_tests: bool = False) -> None:
    """Print a table of the paper next to the measured results for each benchmark, then its comparisons."""
    target = reproduction.target
    console.print(f"{target.table}: {target.title}.{' ' + QUICK_WARNING if reproduction.quick else ''}")
    for benchmark in dict.fromkeys(row.cell.benchmark for row in reproduction.rows):
        table = Table([METHOD, *numbers("n", "ours", "paper", "difference [95 %]")], f"{benchmark}: accuracy %")
        for row in reproduction.rows:
            if row.cell.benchmark == benchmark:
                paper, difference = row.cell.published, row.difference
                interval = "" if math.isnan(difference.low) else f" [{difference.low:+.2f}, {difference.high:+.2f}]"
                published = Cell(format_mean_std(paper.mean, paper.std), paper.mean, marks=paper.marks)
                measured = format_mean_std(row.mean, row.std)
                table.add(row.cell.method, row.n, measured, published, f"{difference.mean:+.2f}{interval}")
        console.print(render_table(table, boxed=True))
    if reproduction.rows:
        console.print(f"({_describe_intervals(reproduction)})")
    for c in reproduction.comparisons:
        _show_comparison(console, c, len(reproduction.comparisons) if all_tests else None)
    if reproduction.comparisons and not reproduction.quick:
        console.print(
            f"(marks as in the paper, by the uncorrected one-tailed paired t-test: {describe_levels(target.levels)})"
        )
    for c in reproduction.best:
        console.print(f"The best edited method against the previous best, by {c.selected_by}:")
        _show_comparison(console, c, len(reproduction.best) if all_tests else None)
    if reproduction.best:
        level = "" if reproduction.quick else f"† p < {max(target.levels):g}; "
        console.print(f"({level}differences are biased upwards where our own means select the methods)")
    for benchmark, reason in reproduction.missing.items():
        console.print(f"skipped: {benchmark}: {reason}")
    for failure in reproduction.results.failures:
        _show_failure(console, failure)


def _describe_intervals(reproduction: Reproduction) -> str:
    """Describe which runs the confidence intervals of differences from the paper account for."""
    published = [row.cell.published for row in reproduction.rows]
    if all(number.std is None for number in published):
        return "the paper gives no standard deviations here: intervals account only for our runs"
    if any((number.location, number.quantity) == (reproduction.target.table, "runs") for number in quantities()):
        return "intervals account for our runs and those of the paper"
    counts = " or ".join(str(n) for n in sorted({number.n for number in published if number.n}))
    return f"the paper does not state the number of runs for this table; intervals assume {counts}"


def _show_comparison(console: Console, c: Comparison, comparisons: int | None) -> None:
    """Print a gain next to the published one; given the number of comparisons, also the other tests of it."""
    console.print(f"{c.benchmark}: {c.method} over {c.baseline}: {format_gain(c.gain, c.marks)}")
    if c.published_gain is not None:
        p_text = "" if c.published_p is None else f", p = {c.published_p:g}"
        console.print(f"  paper {c.published_gain:+.2f}{c.published_marks or ''}{p_text}")
    if comparisons is not None and not math.isnan(c.gain.p):
        console.print(
            f"  permutation test p {format_p(c.permutation_p)}; p {format_p(c.corrected_p)} corrected for "
            + (f"the {comparisons} shown" if comparisons > 1 else "1 comparison")
        )


def show_artifact(console: Console, result: ArtifactResult | Reproduction, *, all_tests: bool = False) -> None:
    """Print a reproduced table or figure: measured and published numbers, and the files that were written."""
    if isinstance(result, Reproduction):
        show_reproduction(console, result, all_tests=all_tests)
        return
    if result.table is not None:
        show_reproduction(console, result.table, all_tests=all_tests)
    else:
        artifact = result.artifact
        console.print(f"{artifact.location}: {artifact.title}.{' ' + QUICK_WARNING if result.quick else ''}")
    if result.numbers:
        _show_numbers(console, result)
    for c in result.comparisons:
        _show_comparison(console, c, len(result.comparisons) if all_tests else None)
    for note in result.notes:
        console.print(note)
    if result.table is None:
        for name, reason in result.missing.items():
            console.print(f"skipped: {name}: {reason}")
    already_shown = result.table.failures if result.table is not None else []
    for failure in result.failures:
        if failure not in already_shown:
            _show_failure(console, failure)
    if result.files:
        first, *others = result.files
        console.print(", ".join([f"wrote {first}", *(path.suffix for path in others)]), soft_wrap=True)


def _show_numbers(console: Console, result: ArtifactResult) -> None:
    table = Table([*texts("benchmark", "quantity"), *numbers("n", "ours", "paper")])
    for number in result.numbers:
        paper = MISSING if number.published is None else format_number(number.published, number.published_std)
        table.add(number.benchmark, number.quantity, number.n, format_number(number.mean, number.std), paper)
    console.print(render_table(table, boxed=True))
    for number in result.numbers:
        if (difference := number.difference) is not None and difference.low < difference.high:
            console.print(
                f"{number.benchmark}: {number.quantity}: {difference.mean:+.3g} vs. the paper,\n"
                f"  95 % interval [{difference.low:+.3g}, {difference.high:+.3g}], {number.n} runs"
            )


def show_artifact_status(console: Console, statuses: Sequence[ArtifactStatus]) -> None:
    """Print the artifacts that can be reproduced, with what they show, their data sets and the remaining work."""
    headings = texts("target\n  in the paper", "shows\n  data sets"), numbers("runs stored\nseeds", "time\nleft")
    table = Table([*headings[0], *headings[1]])
    for status in statuses:
        artifact = status.artifact
        datasets = " ".join(name if available else f"{name}*" for name, available in status.data.items())
        stored = f"{status.stored if status.cached else '-'}/{status.needed}"
        stored += f"\n{' to '.join(map(str, sorted(set(status.seeds))))}"
        first, second = f"{artifact.name}\n  {artifact.location.split(',')[0]}", f"{artifact.title}\n  {datasets}"
        table.add(first, second, stored, _time_left(status))
    console.print(render_table(table, gap=1))
    notes = {
        "* missing; run gmed data to see how to get it. Times exclude these.": any(
            not available for status in statuses for available in status.data.values()
        ),
        "- always recomputed, never stored.": not all(status.cached for status in statuses),
        "? unknown, + plus an unknown amount.": any(status.unknown for status in statuses),
        "gmed reproduce TARGET computes the remaining runs; --quick is a smoke test.": True,
    }
    for note, applies in notes.items():
        if applies:
            console.print(note)


def _time_left(status: ArtifactStatus) -> str:
    known = format_duration(status.seconds) if status.seconds else ""
    if status.unknown:
        return f"{known}+" if known else "?"
    return known or ("none here" if status.elsewhere else "none")


def _show_failure(console: Console, failure: Failure) -> None:
    console.print(f"failed: {failure.benchmark} {failure.method} seed {failure.seed}: {first_line(failure.error)}")


def show_speeds(console: Console, speeds: Sequence[Speed], environment: Mapping[str, str]) -> None:
    """Print the measured speeds, one line per method and number of learners."""
    headings = "learners", "ms", "steps/s", "times as fast", "memory"
    table = Table([METHOD, *numbers(*headings)], f"{speeds[0].benchmark}: milliseconds per step of one learner")
    for speed in speeds:
        learners = f"{speed.replicas} together" if speed.replicas else "plain loop"
        memory = f"{speed.peak_bytes / 2**30:.1f} GiB" if speed.peak_bytes else MISSING
        cells = f"{speed.milliseconds:.3f}", f"{1000 / speed.milliseconds:,.0f}", f"{speed.ratio:.1f}"
        table.add(speed.method, learners, *cells, memory)
    console.print(render_table(table, boxed=True))
    by_stage = [speed for speed in speeds if speed.stages]
    names = list(dict.fromkeys(stage for speed in by_stage for stage in speed.stages or ()))
    table = Table([METHOD, *numbers(*names)], "milliseconds per step by stage, measured in a separate loop")
    for speed in by_stage:
        stages = speed.stages or {}
        table.add(speed.method, *(f"{stages[name]:.3f}" if name in stages else MISSING for name in names))
    console.print(render_table(table, boxed=True))
    console.print(", ".join(f"{name} {value}" for name, value in environment.items()))


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
