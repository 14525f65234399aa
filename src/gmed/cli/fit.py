"""Commands for a single classifier: gmed fit, gmed predict."""

from __future__ import annotations

import csv
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, TextIO

import scipy
import typer
from rich.progress import DownloadColumn

from gmed.cli.console import PacedLines, make_console, progress_bar
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK
from gmed.cli.options import Drop
from gmed.data.dataset import Progress
from gmed.data.tabular import is_table
from gmed.errors import DataError, UsageError, named
from gmed.io.files import atomic_write, check_output_path, csv_cell, wrap_os_errors
from gmed.online import ClassifierConfig
from gmed.online.table_fit import FitProgress, TableFit, fit_table, predict_table

DEFAULTS = ClassifierConfig()


def fit(
    table: Annotated[
        str,
        typer.Argument(
            help="A .csv, .csv.gz or .parquet file, or - to read CSV from standard input; rows are learned in order"
        ),
    ],
    label: Annotated[str, typer.Option(help="The label column")],
    out: Annotated[str, typer.Option("--out", "-o", help="Output file for the model")],
    drop: Drop = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Saved model to continue training; its settings are used")
    ] = None,
    memory: Annotated[int | None, typer.Option(help=f"Number of stored examples [{DEFAULTS.memory}]")] = None,
    alpha: Annotated[
        float | None, typer.Option(help=f"Step size of the edit, 0 for no edit [{DEFAULTS.alpha:g}]")
    ] = None,
    beta: Annotated[float | None, typer.Option(help=f"Weight of the edit's loss penalty [{DEFAULTS.beta:g}]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help=f"SGD learning rate [{DEFAULTS.learning_rate:g}]")] = None,
    batch_size: Annotated[int | None, typer.Option(help=f"Rows per step [{DEFAULTS.batch_size}]")] = None,
    updates_per_batch: Annotated[
        int | None, typer.Option(help=f"Gradient updates per step [{DEFAULTS.updates_per_batch}]")
    ] = None,
    replay_size: Annotated[
        int | None, typer.Option(help=f"Replayed examples per step [{DEFAULTS.replay_size}]")
    ] = None,
    hidden: Annotated[int | None, typer.Option(help=f"Width of the two hidden layers [{DEFAULTS.hidden}]")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed [0]")] = None,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between checkpoints")] = 60.0,
) -> None:
    """Train a classifier on a table, row by row. An interrupted fit resumes."""
    options = {
        "memory": memory,
        "alpha": alpha,
        "beta": beta,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "updates_per_batch": updates_per_batch,
        "replay_size": replay_size,
        "hidden": hidden,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    if start is not None and (chosen or seed is not None):
        name = next(iter(chosen), "seed").replace("_", "-")
        raise UsageError(f"--{name} cannot be combined with --from, which uses the saved settings")
    settings = ClassifierConfig(**chosen)  # type: ignore[arg-type]
    check_output_path(Path(out))
    console = make_console(stderr=True)
    with _open_table(table) as path:
        job = TableFit(
            table=path,
            label=label,
            model=Path(out),
            drop=tuple(drop or ()),
            settings=settings,
            seed=seed or 0,
            start=None if start is None else Path(start),
        )
        with graceful_stop() as stop, progress_bar("learning", DownloadColumn()) as progress:
            printer = _ProgressPrinter(progress)
            learned = fit_table(
                job, checkpoint_every=checkpoint_every, progress=printer.on_progress, watch=printer, stop=stop
            )
    if learned.repeated:
        console.print(f"{job.model.resolve()} already contains the result of this fit; nothing to do", soft_wrap=True)
    if learned.resumed:
        console.print(f"resumed after row {learned.resumed:,}")
    if not learned.finished:
        console.print(f"Stopped after row {learned.rows:,}. Run the same command again to resume.")
        raise typer.Exit(EXIT_INTERRUPTED)
    classes = len(learned.classifier.labels.classes_by_output)
    console.print(
        f"{learned.rows:,} rows, {classes} classes; prequential (test-then-train) accuracy "
        f"{learned.num_correct / learned.rows:.1%}. The model is in {job.model.resolve()}",
        soft_wrap=True,
    )


def predict(
    model: Annotated[str, typer.Argument(help="A model file written by gmed fit")],
    table: Annotated[
        str, typer.Argument(help="A table with the same columns, as for gmed fit; other columns are ignored")
    ],
    out: Annotated[str | None, typer.Option("--out", "-o", help="Output .csv file [standard output]")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also write the probability of every class")] = False,
) -> None:
    """Predict the class of every row of a table."""
    if is_table(Path(model)) and table != "-" and not is_table(Path(table)):
        raise UsageError(f"{model}: this is a table, not a model; the model comes first: gmed predict {table} {model}")
    if not Path(model).exists():
        raise DataError(f"{model}: no such file.")
    rows = correct = labeled = 0
    header_written = False
    if out is not None:
        check_output_path(Path(out))
    with (
        _open_table(table) as path,
        progress_bar("predicting", DownloadColumn()) as progress,
        _open_output(out) as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        for classifier, scores, labels in predict_table(Path(model), path, progress):
            classes = classifier.labels.classes
            if not header_written:
                writer.writerow(["prediction", *(f"p({name})" for name in classes.tolist() if proba)])
            header_written = True
            predictions = classes[scores.argmax(1)].tolist()
            probabilities = scipy.special.softmax(scores.astype(float), axis=1) if proba else [()] * len(predictions)
            writer.writerows(
                [csv_cell(name), *(f"{p:.6g}" for p in row)]
                for name, row in zip(predictions, probabilities, strict=True)
            )
            rows += len(predictions)
            labeled += len(labels)
            correct += sum(str(name) == label for name, label in zip(predictions, labels, strict=False))
        if not rows:
            raise DataError(f"{path}: the table has no rows.")
    if labeled:
        make_console(stderr=True).print(f"accuracy on the {labeled:,} labeled rows: {correct / labeled:.1%}")
    raise typer.Exit(EXIT_OK)


@contextmanager
def _open_output(out: str | None) -> Iterator[TextIO]:
    """Open a file that appears when it is complete, or standard output."""
    if out is None:
        if sys.stdout is None:  # None if the descriptor was closed before Python started
            raise UsageError("standard output is closed; give the name of a file with --out")
        yield sys.stdout
        return
    with atomic_write(Path(out)) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.detach()  # flushes


class _ProgressPrinter:
    """Prints progress lines, less and less often, if the output is not a terminal; a terminal has a bar."""

    def __init__(self, bar: Progress) -> None:
        self.console, self.pace, self.bar = make_console(stderr=True), PacedLines(), bar
        self.skipped: float | None = None
        self.share = 0.0

    def on_progress(self, done: int, total: int | None) -> None:
        """Record the share of the file read by this process, not counting an earlier, interrupted one."""
        position = done / total if total else 0.0
        self.skipped = position if self.skipped is None else self.skipped
        self.share = (position - self.skipped) / (1 - self.skipped) if self.skipped < 1 else 1.0
        self.bar(done, total)

    def __call__(self, learned: FitProgress) -> None:
        if not self.console.is_terminal and self.pace.due():
            accuracy = f"prequential accuracy {learned.num_correct / learned.rows:.1%}"
            self.console.print(f"  {learned.rows:,} rows, {accuracy}, {self.pace.times(self.share)}")


@contextmanager
def graceful_stop() -> Iterator[Callable[[], bool]]:
    """Defer SIGINT and SIGTERM to the end of a step; a second signal interrupts at once.

    Yields a function that returns whether a stop was requested.
    """
    requested = False

    def request_stop(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    handlers = {kind: signal.signal(kind, request_stop) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for kind, handler in handlers.items():
            signal.signal(kind, handler)


@contextmanager
def _open_table(table: str) -> Iterator[Path]:
    """Yield the file of a table: for ``-`` a copy of standard input, so that a fit of it resumes."""
    if table != "-":
        path = Path(table)
        if not is_table(path):
            raise UsageError(f"{table}: a table must be a .csv, .csv.gz or .parquet file, or - for standard input")
        if not path.exists():
            raise DataError(f"{table}: no such file.")
        yield path
        return
    if sys.stdin is None:  # None if the descriptor was closed before Python started
        raise UsageError("standard input is closed; give the name of a table")
    with TemporaryDirectory(prefix="gmed-") as folder:
        path = Path(folder, "rows.csv")
        with wrap_os_errors(path), path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with named(path, "standard input"):
            yield path
