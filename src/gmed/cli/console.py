"""How experiments look in a terminal: live progress on standard error, tables on standard output."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
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
from gmed.callbacks import Watcher
from gmed.data import dataset as data
from gmed.engine import BENCHMARKS, Event, RunSpec
from gmed.engine.bench import Speed
from gmed.paper import quantities
from gmed.paper.artifacts import ArtifactResult
from gmed.paper.plan import QUICK_WARNING
from gmed.paper.status import ArtifactStatus
from gmed.paper.tables import Reproduction
from gmed.results import Failure, Results
from gmed.results.comparisons import Comparison, describe_levels
from gmed.results.formatting import beside, duration, first_line, format_gain, p_value, spread
from gmed.results.metrics import Metrics
from gmed.results.tables import (
    METHOD,
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


DONE, EXIT_RUN_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED = 0, 1, 2, 130, 141
"""Exit codes; the last is that of programs that SIGPIPE ends."""


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints what it is given: brackets in a path or an error are not markup."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


@contextmanager
def progress_bar(name: str, amount: ProgressColumn) -> Iterator[data.Progress]:
    """A bar on standard error, from the first progress on; nothing where nobody is watching live."""
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


class LiveProgress(Watcher):
    """A bar over all runs and the mean so far of every method; plain lines where nobody is watching live."""

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
        self.found: dict[str, list[float]] = {}
        self.planned: dict[str, int] = {}
        self.under_way: dict[str, float] = {}
        self.finished = 0
        self.waited = False
        self.started = self.said = time.monotonic()

    def preparing(self, done: int, total: int | None) -> None:
        if self.decoding is None:
            bar = progress_bar("decoding images", MofNCompleteColumn())
            self.decoding = self.decoding_bar.enter_context(bar)
        self.decoding(done, total)

    def start(self, todo: Sequence[RunSpec], kept: int) -> None:
        self.decoding_bar.close()
        if kept:
            self.console.print(f"{_runs(kept)} already in the store, {len(todo)} to compute")
        if not todo:
            return
        for spec in todo:
            self.planned[spec.method.name] = self.planned.get(spec.method.name, 0) + 1
        self.task = self.bar.add_task(todo[0].benchmark.name, total=len(todo))
        if self.console.is_terminal:
            self.live = Live(self._view(), console=self.console, refresh_per_second=5, transient=True)
            self.live.start()
        else:
            self.console.print(f"{todo[0].benchmark.name}: {_runs(len(todo))}")

    def waiting(self, runs: int) -> None:
        if not self.waited:
            self.console.print(f"another sweep is computing {_runs(runs)} of these; waiting for it")
        self.waited = True

    def event(self, event: Event) -> None:
        if isinstance(event, engine.Progress):
            self.under_way[event.spec.key] = event.seen / event.total
        else:
            self.under_way.pop(event.spec.key, None)
            self.finished += 1
            if isinstance(event, engine.Finished):
                self.found.setdefault(event.spec.method.name, []).append(event.result.final_accuracy)
            else:
                self.console.print(f"failed: {event.spec}: {first_line(event.error)}")
        self._tell()

    def watched(self, spec: RunSpec) -> None:
        self.finished += 1
        self._tell()

    def _tell(self) -> None:
        self.bar.update(self.task, completed=self.finished + sum(self.under_way.values()))
        if self.live is not None:
            self.live.update(self._view())
        elif time.monotonic() - self.said > 10:
            self.said = time.monotonic()
            self.console.print(
                f"  {self.finished} of {_runs(sum(self.planned.values()))} after {self.said - self.started:.0f} s",
            )

    def _view(self) -> Group:
        table = Table([*texts("method so far"), *numbers("runs", "accuracy %")])
        for method, planned in self.planned.items():
            found = self.found.get(method, [])
            mean = f"{100 * sum(found) / len(found):.2f}" if found else MISSING
            table.add(method, f"{len(found)}/{planned}", mean)
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
    """The table of each benchmark: ours, the paper's, the difference, and below it the gains of editing."""
    rows = results.rows()
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        own = [row for row in rows if row.benchmark == benchmark]
        compared = any(row.published for row in own) or benchmark in BENCHMARKS
        difference = " (difference ± s.e.)" if compared else ""
        title = f"{benchmark}: final accuracy %, mean ± standard deviation{difference}"
        beside = ("paper", "ours - paper") if compared else ()
        table = Table([METHOD, *numbers("n", "ours", *beside)], title)
        for row in own:
            theirs = (published_cell(row), difference_cell(row)) if compared else ()
            table.add(row.method, row.n, accuracy_cell(row), *theirs)
        console.print(render_table(table, boxed=True))
        if any(row.missed for row in own):
            console.print("! more than two standard errors from the published mean")
        gained = [(row, row.gain) for row in own if row.gain is not None]
        for row, gain in gained:
            console.print(f"{row.method} over {row.gain_over}: {format_gain(gain)}")
        if gained:
            console.print("(paired by seed; p: one-tailed t-test; d: mean / standard deviation)")
    for failure in results.failures:
        _show_failure(console, failure)


def show_tuning(console: Console, found: TuningResult) -> None:
    """Held-out accuracy over the grid: the first parameter down, the second, if there is one, across."""
    down = list(dict.fromkeys(point[0] for point in found.scores))
    across = list(dict.fromkeys(point[1:] for point in found.scores))
    best = max(found.scores.values())
    title = f"{found.benchmark} {found.method}: held-out accuracy % of the first tasks, seeds: {found.seeds}"
    headings = (", ".join(f"{value:g}" for value in other) or "accuracy" for other in across)
    table = Table(numbers(" \\ ".join(found.parameters), *headings), title)
    for first in down:
        scores = [found.scores[first, *other] for other in across]
        table.add(f"{first:g}", *(Cell(f"{value:.2f}", value, marks="*" * (value == best)) for value in scores))
    console.print(render_table(table))
    point = max(found.scores, key=lambda point: found.scores[point])
    values = ", ".join(f"{name} = {value:g}" for name, value in zip(found.parameters, point, strict=True))
    tied = sum(score == best for score in found.scores.values())
    if tied == len(found.scores) > 1:
        console.print("All candidates score the same: there are too few held-out examples to choose by.")
    chosen = "chosen" if tied == 1 else f"best; the first of these {tied} is chosen"
    console.print(f"* {chosen}: {values}. Use it as '{found.method}(tuned)'.")
    if found.failures:
        console.print(f"{_runs(len(found.failures))} failed; one that diverged counts as 0, others must be run again")


MATRIX_METRICS = "final", "pooled", "forgetting", "backward_transfer", "forward_transfer", "anytime", "worst_case"
ONLINE_METRICS = "prequential", "forward_passes", "backward_passes", "seconds", "overhead", "overhead_mb"
"""Metrics in the order they are shown: those of the accuracy matrix, and those of learning itself."""

IN_PERCENT = {*MATRIX_METRICS, "prequential"}


def show_metrics(console: Console, results: Results) -> None:
    """Means over seeds of all metrics, and what to do about those that were not measured."""
    for benchmark in dict.fromkeys(run.benchmark for run in results.runs):
        found: dict[str, list[Metrics]] = {}
        for run in results.runs:
            if run.benchmark == benchmark:
                found.setdefault(run.method, []).append(Metrics.of(run))
        titles = (
            "means in %",
            "prequential accuracy in %, passes per example of the stream, seconds of training, memory",
        )
        for title, names in zip(titles, (MATRIX_METRICS, ONLINE_METRICS), strict=True):
            headings = (name.replace("_", "\n") for name in ("n", *names))
            table = Table([METHOD, *numbers(*headings)], f"{benchmark}: {title}")
            for method, runs in found.items():
                table.add(method, len(runs), *(_mean(runs, name) for name in names))
            console.print(render_table(table, gap=1))
    older = sum(run.untrained is None or run.passes is None for run in results.runs)
    if older:
        what = "forward transfer and passes are not known of the older ones"
        console.print(f"{what} ({_runs(older)});\n  gmed run --rerun computes runs anew")
    if any(run.prequential is None for run in results.runs):
        console.print("prequential accuracy is measured by gmed run --prequential")


def _mean(runs: Sequence[Metrics], name: str) -> str:
    mean = sum(getattr(run, name) for run in runs) / len(runs)
    return "-" if math.isnan(mean) else f"{100 * mean if name in IN_PERCENT else mean:.2f}"


def show_reproduction(console: Console, found: Reproduction) -> None:
    """A table of the paper beside ours, column by column, then its comparisons."""
    target = found.target
    console.print(f"{target.table}: {target.title}.{' ' + QUICK_WARNING if found.quick else ''}")
    for benchmark in dict.fromkeys(row.cell.benchmark for row in found.rows):
        table = Table([METHOD, *numbers("n", "ours", "paper", "difference [95 %]")], f"{benchmark}: accuracy %")
        for row in found.rows:
            if row.cell.benchmark == benchmark:
                paper, apart = row.cell.published, row.difference
                interval = "" if math.isnan(apart.low) else f" [{apart.low:+.2f}, {apart.high:+.2f}]"
                printed = Cell(spread(paper.mean, paper.std), paper.mean, marks=paper.marks)
                ours = spread(row.mean, row.std)
                table.add(row.cell.method, row.n, ours, printed, f"{apart.mean:+.2f}{interval}")
        console.print(render_table(table, boxed=True))
    if found.rows:
        console.print(f"({_describe_intervals(found)})")
    for c in found.comparisons:
        _show_comparison(console, c, len(found.comparisons))
    if found.comparisons and not found.quick:
        console.print(
            f"(marks as the paper's, of the uncorrected one-tailed paired t-test: {describe_levels(target.levels)})"
        )
    for c in found.best:
        console.print(f"The best edited method against the previous best, by {c.chosen}:")
        _show_comparison(console, c, len(found.best))
    if found.best:
        level = "" if found.quick else f"† p < {max(target.levels):g}; "
        console.print(f"({level}where our means choose, the difference is flattered by the choice)")
    for benchmark, why in found.missing.items():
        console.print(f"left out: {benchmark}: {why}")
    for failure in found.results.failures:
        _show_failure(console, failure)


def _describe_intervals(found: Reproduction) -> str:
    """What the intervals of differences from the paper are made of."""
    published = [row.cell.published for row in found.rows]
    if all(number.std is None for number in published):
        return "the paper gives no standard deviations here: intervals are of our runs alone"
    if any((number.where, number.quantity) == (found.target.table, "runs") for number in quantities()):
        return "intervals are of our runs and the paper's"
    counts = " or ".join(str(n) for n in sorted({number.n for number in published if number.n}))
    return f"the paper does not say over how many runs this table is; intervals take it to be {counts}"


def _show_comparison(console: Console, c: Comparison, comparisons: int) -> None:
    console.print(f"{c.benchmark}: {c.method} over {c.rival}: {format_gain(c.gain, c.marks)}")
    if c.published_gain is not None:
        printed = "" if c.published_p is None else f", p = {c.published_p:g}"
        console.print(f"  paper {c.published_gain:+.2f}{c.published_marks or ''}{printed}")
    if not math.isnan(c.gain.p):
        console.print(
            f"  permutation test p {p_value(c.permutation)}; p {p_value(c.corrected)} corrected for "
            + (f"the {comparisons} shown" if comparisons > 1 else "1 comparison")
        )


def show_artifact(console: Console, found: ArtifactResult | Reproduction) -> None:
    """A table or a figure of the paper: ours beside the published numbers, and the files that were written."""
    if isinstance(found, Reproduction):
        show_reproduction(console, found)
        return
    if found.table is not None:
        show_reproduction(console, found.table)
    else:
        study = found.study
        console.print(f"{study.where}: {study.title}.{' ' + QUICK_WARNING if found.quick else ''}")
    if found.numbers:
        _show_numbers(console, found)
    for c in found.comparisons:
        _show_comparison(console, c, len(found.comparisons))
    for note in found.notes:
        console.print(note)
    if found.table is None:
        for name, why in found.missing.items():
            console.print(f"left out: {name}: {why}")
    shown = found.table.failures if found.table is not None else []
    for failure in found.failures:
        if failure not in shown:
            _show_failure(console, failure)
    if found.files:
        first, *others = found.files
        console.print(", ".join([f"wrote {first}", *(path.suffix for path in others)]), soft_wrap=True)


def _show_numbers(console: Console, found: ArtifactResult) -> None:
    table = Table([*texts("benchmark", "quantity"), *numbers("n", "ours", "paper")])
    for number in found.numbers:
        paper = MISSING if number.published is None else beside(number.published, number.published_std)
        table.add(number.benchmark, number.quantity, number.n, beside(number.mean, number.std), paper)
    console.print(render_table(table, boxed=True))
    for number in found.numbers:
        if (found_apart := number.difference) is not None and found_apart.low < found_apart.high:
            console.print(
                f"{number.benchmark}: {number.quantity}: {found_apart.mean:+.3g} from the paper's,\n"
                f"  95 % interval [{found_apart.low:+.3g}, {found_apart.high:+.3g}], {number.n} runs"
            )


def show_artifact_status(console: Console, standings: Sequence[ArtifactStatus]) -> None:
    """What can be reproduced: what it shows, the data it needs, and what is left to compute."""
    headings = texts("target\n  in the paper", "shows\n  data sets"), numbers("runs stored\nseeds", "time\nleft")
    table = Table([*headings[0], *headings[1]])
    for standing in standings:
        study = standing.study
        sets = " ".join(name if here else f"{name}*" for name, here in standing.data.items())
        stored = f"{standing.stored if standing.kept else '-'}/{standing.needed}"
        stored += f"\n{' to '.join(map(str, sorted(set(standing.seeds))))}"
        first, second = f"{study.name}\n  {study.where.split(',')[0]}", f"{study.title}\n  {sets}"
        table.add(first, second, stored, _time_left(standing))
    console.print(render_table(table, gap=1))
    notes = {
        "* not here; gmed data says how to get it. Time is of what can be run here.": any(
            not here for standing in standings for here in standing.data.values()
        ),
        "- run anew every time, and not stored.": not all(standing.kept for standing in standings),
        "? not known, + and more that is not known.": any(standing.unknown for standing in standings),
        "gmed reproduce TARGET computes what is left, --quick a small version.": True,
    }
    for note, wanted in notes.items():
        if wanted:
            console.print(note)


def _time_left(standing: ArtifactStatus) -> str:
    known = duration(standing.seconds) if standing.seconds else ""
    if standing.unknown:
        return f"{known}+" if known else "?"
    return known or ("none here" if standing.elsewhere else "none")


def _show_failure(console: Console, failure: Failure) -> None:
    console.print(f"failed: {failure.benchmark} {failure.method} seed {failure.seed}: {first_line(failure.error)}")


def show_speeds(console: Console, speeds: Sequence[Speed], environment: Mapping[str, str]) -> None:
    """What was measured, a line for each method and number of learners."""
    headings = "learners", "ms", "steps/s", "times as fast", "memory"
    table = Table([METHOD, *numbers(*headings)], f"{speeds[0].benchmark}: milliseconds per step of one learner")
    for speed in speeds:
        learners = f"{speed.replicas} together" if speed.replicas else "plain loop"
        memory = f"{speed.peak_bytes / 2**30:.1f} GiB" if speed.peak_bytes else MISSING
        each = f"{speed.milliseconds:.3f}", f"{1000 / speed.milliseconds:,.0f}", f"{speed.ratio:.1f}"
        table.add(speed.method, learners, *each, memory)
    console.print(render_table(table, boxed=True))
    by_stage = [speed for speed in speeds if speed.stages]
    names = list(dict.fromkeys(stage for speed in by_stage for stage in speed.stages or ()))
    table = Table([METHOD, *numbers(*names)], "by stage, in a loop of its own")
    for speed in by_stage:
        found = speed.stages or {}
        table.add(speed.method, *(f"{found[name]:.3f}" if name in found else MISSING for name in names))
    console.print(render_table(table, boxed=True))
    console.print(", ".join(f"{name} {value}" for name, value in environment.items()))


def _runs(count: int) -> str:
    return f"{count} run" if count == 1 else f"{count} runs"
