"""Fitting a classifier to a table on disk, which may be larger than memory, and predicting for another table."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gmed.data.dataset import Progress, no_progress
from gmed.data.paths import file_signature
from gmed.data.tabular import TableFile
from gmed.errors import DataError, UsageError, check_float, check_int
from gmed.io.files import check_output_path, open_regular, reading, remove_stale_files
from gmed.io.state import read_metadata
from gmed.online.classifier import OnlineClassifier
from gmed.online.config import ClassifierConfig

BLOCK = 1000
"""Approximate number of rows that are read at once."""


@dataclass(frozen=True)
class TableFit:
    """A table to learn from, the settings, and the file for the model.

    Parameters
    ----------
    table
        A .csv, .csv.gz or .parquet file; its rows are learned in their order.
    label
        The label column. Labels are read as strings, even if they look like numbers.
    model
        The file to which the model is written.
    drop
        Columns to exclude. All others must contain numbers.
    settings, seed
        Hyper-parameters and random seed.
    start
        A model to continue training; its saved settings and seed are used.
    """

    table: Path
    label: str
    model: Path
    drop: tuple[str, ...] = ()
    settings: ClassifierConfig = field(default_factory=ClassifierConfig)
    seed: int = 0
    start: Path | None = None

    @property
    def checkpoint(self) -> Path:
        """The file of the checkpoint of an unfinished fit."""
        return self.model.with_name(f"{self.model.name}.unfinished")

    def discard_checkpoint(self) -> None:
        """Remove the checkpoint and leftovers of killed writers, which contain rows of the table."""
        self.checkpoint.unlink(missing_ok=True)
        remove_stale_files(self.checkpoint.parent, self.checkpoint.name)

    def identity(self, table: str, start: str | None) -> str:
        """Return a digest that is the same for two fits with the same result, given the digests of their files."""
        parts = [table, self.label, self.drop, self.settings.to_json(), self.seed, start]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass
class FitProgress:
    """The progress of a fit.

    Attributes
    ----------
    rows
        Number of rows of the table learned so far.
    num_correct
        Number of rows that were predicted correctly before they were learned.
    resumed
        Number of rows in the checkpoint it was resumed from; 0 if it was not resumed.
    finished
        Whether all rows have been learned.
    repeated
        Whether the model file already contains the result of the same fit, so that nothing was learned.
    """

    classifier: OnlineClassifier
    rows: int = 0
    num_correct: int = 0
    resumed: int = 0
    finished: bool = False
    repeated: bool = False


def fit_table(
    fit: TableFit,
    *,
    checkpoint_every: float = 60.0,
    progress: Progress = no_progress,
    watch: Callable[[FitProgress], None] = lambda learned: None,
    stop: Callable[[], bool] = lambda: False,
) -> FitProgress:
    """Learn from a table, predicting each batch before learning from it; an interrupted fit resumes.

    The result does not depend on interruptions. ``stop`` is called after every step; if it returns true, a checkpoint
    is written, from which the next call resumes. The model file identifies the fit that wrote it: repeating a finished
    fit, for example because it was killed at the very end, learns nothing twice, even if the model replaced the one
    that the fit continued from.
    """
    check_float("checkpoint_every", checkpoint_every, greater_than=0)
    check_output_path(fit.model)
    file = TableFile(fit.table)
    file.check([fit.label, *fit.drop])
    features = file.others([fit.label, *fit.drop])
    signature, table = file_signature(fit.table), _digest(fit.table)
    if (done := _finished_fit(fit, table)) is not None:
        fit.discard_checkpoint()
        return done
    start_digest = None if fit.start is None else _digest(fit.start)
    identity = fit.identity(table, start_digest)
    learned = _resume_or_start(fit, features, identity)
    classifier, size = learned.classifier, learned.classifier.settings.batch_size
    classifier.feature_names = features
    next_checkpoint = time.monotonic() + checkpoint_every

    def save(path: Path, **more: str) -> None:
        if file_signature(fit.table) != signature:
            raise DataError(f"{fit.table}: the file changed while it was being read. Run again when it is complete.")
        counts = {"rows": learned.rows, "right": learned.num_correct}
        classifier.save(path, fit=identity, progress=json.dumps(counts), **more)

    for block in file.batches(features, fit.label, size=size * max(1, BLOCK // size), skip=learned.rows):
        labels = np.array(block.labels)
        for start in range(0, len(labels), size):
            x, y = block.features[start : start + size], labels[start : start + size]
            predictions = classifier.predict(x) if classifier.rows else np.full(len(y), "")
            classifier.learn(x, y)
            learned.num_correct += int((predictions == y).sum())
            learned.rows += len(y)
            if stop():
                save(fit.checkpoint)
                return learned
            if time.monotonic() >= next_checkpoint:
                save(fit.checkpoint)
                next_checkpoint = time.monotonic() + checkpoint_every
        progress(file.position, file.size)
        watch(learned)
    if not learned.rows:
        raise DataError(f"{fit.table}: the table has no rows.")
    save(fit.model, label=fit.label, start=start_digest or "")
    fit.discard_checkpoint()
    learned.finished = True
    return learned


def _finished_fit(fit: TableFit, table: str) -> FitProgress | None:
    """Return the result of the same fit if it has finished before."""
    try:
        texts = read_metadata(fit.model)
    except UsageError:  # no file, or a different one
        return None
    start = None if fit.start is None else texts.get("start")
    if "start" not in texts or texts.get("fit") != fit.identity(table, start):
        return None
    replaced = fit.start is not None and fit.start.exists() and fit.start.samefile(fit.model)
    if fit.start is not None and not replaced and _digest(fit.start) != start:
        return None
    classifier, texts = OnlineClassifier.load(fit.model)
    rows, num_correct = _parse_counts(fit.model, texts)
    return FitProgress(classifier, rows, num_correct, finished=True, repeated=True)


def _resume_or_start(fit: TableFit, features: Sequence[str], identity: str) -> FitProgress:
    """Resume from the checkpoint if there is one, or start from the beginning."""
    if fit.checkpoint.exists():
        classifier, texts = OnlineClassifier.load(fit.checkpoint)
        if texts.get("fit") != identity:
            raise UsageError(
                f"{fit.checkpoint}: this checkpoint belongs to another fit, with other rows, columns or settings or "
                "another version of gmed. Use the same ones to resume it, or delete it to start over."
            )
        rows, num_correct = _parse_counts(fit.checkpoint, texts)
        return FitProgress(classifier, rows, num_correct, resumed=rows)
    if fit.start is None:
        return FitProgress(OnlineClassifier(fit.settings, len(features), fit.seed))
    classifier, _ = OnlineClassifier.load(fit.start)
    if _column_names(fit.start, classifier) != list(features):
        raise UsageError(
            f"{fit.table}: its columns differ from those that {fit.start} was trained on, or are in another order"
        )
    return FitProgress(classifier)


def _column_names(model: Path, classifier: OnlineClassifier) -> list[str]:
    """Return the names of the columns that a saved classifier was trained on."""
    if classifier.feature_names is None:
        raise UsageError(f"{model}: the model has no column names, as it was trained on arrays")
    return list(classifier.feature_names)


def predict_table(
    model: Path, table: Path, progress: Progress = no_progress
) -> Iterator[tuple[OnlineClassifier, np.ndarray, tuple[str, ...]]]:
    """Predict the rows of a table, block by block.

    Yields the classifier, (rows, classes) scores, and the labels if the table has the label column.
    """
    classifier, texts = OnlineClassifier.load(model)
    names, file = _column_names(model, classifier), TableFile(table)
    if missing := [name for name in names if name not in file.header]:
        raise DataError(f"{table} has no column {missing[0]!r}, which {model} was trained on")
    label = texts.get("label")
    for block in file.batches(names, label if label in file.header else None):
        yield classifier, classifier.scores(block.features), block.labels
        progress(file.position, file.size)


def _parse_counts(path: Path, texts: dict[str, str]) -> tuple[int, int]:
    """Parse the number of rows that a fit has learned, and how many of them it predicted correctly before."""
    try:
        counts = json.loads(texts["progress"])
        return check_int("rows", counts["rows"], minimum=0), check_int("right", counts["right"], minimum=0)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: its fit progress is damaged ({error})") from None


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with reading(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
