"""A classifier from a table on the disk, which may be larger than memory, and predictions for another."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gmed.data.dataset import Progress, no_progress
from gmed.data.tabular import TableFile
from gmed.errors import DataError, UsageError, check_float, check_int
from gmed.io.files import check_output_path, open_regular, remove_stale_files
from gmed.io.state import read_metadata
from gmed.online.classifier import OnlineClassifier
from gmed.online.config import ClassifierConfig

BLOCK = 1000
"""About how many rows are read at once."""


@dataclass(frozen=True)
class TableFit:
    """What is learned, from which table, and where the model goes.

    Parameters
    ----------
    table
        A .csv or .parquet file, whose rows are learned from in their order.
    label
        The column that is the label. LabelEncoder are words, whatever they look like.
    model
        The file that is written.
    drop
        Columns that are left out. All others must hold numbers.
    settings, seed
        How it is learned.
    start
        A model to go on from; the settings and the seed are then its own.
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
        """Where what is learned so far is kept while it goes on."""
        return self.model.with_name(f"{self.model.name}.unfinished")

    def discard_checkpoint(self) -> None:
        """Remove the checkpoint, and what killed writers left of it: it holds rows of the table."""
        self.checkpoint.unlink(missing_ok=True)
        remove_stale_files(self.checkpoint.parent, self.checkpoint.name)

    def identity(self, table: str, start: str | None) -> str:
        """What is the same of two fits that learn the same, by the digests of the files that they learn from."""
        same = [table, self.label, self.drop, self.settings.to_json(), self.seed, start]
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()


@dataclass
class FitProgress:
    """How far a fit has come.

    Attributes
    ----------
    rows
        How many rows of the table have been learned from.
    num_correct
        How many of them were predicted rightly before.
    resumed
        How many had been learned from when it was resumed; 0 if it was not.
    finished
        Whether that is all of them.
    repeated
        Whether an earlier fit had finished with the same, so that nothing was learned.
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
    """Learn from a table, predicting each batch before it is learned from; a fit that was cut goes on where it was.

    What comes out does not depend on where it was cut. ``stop`` is asked after every step; when it says so, what is
    learned is kept and the rest left for another call. The model says which fit made it: the same fit once more, be
    it because the last one was killed at its very end, learns nothing twice, also where the model takes the place of
    the one that was gone on from.
    """
    check_float("checkpoint_every", checkpoint_every, greater_than=0)
    check_output_path(fit.model)
    file = TableFile(fit.table)
    file.check([fit.label, *fit.drop])
    features = file.others([fit.label, *fit.drop])
    unchanged, table = _changes(fit.table), _digest(fit.table)
    if (done := _finished(fit, table)) is not None:
        fit.discard_checkpoint()
        return done
    stream_index = None if fit.start is None else _digest(fit.start)
    identity = fit.identity(table, stream_index)
    learned = _resume_or_start(fit, features, identity)
    classifier, size = learned.classifier, learned.classifier.settings.batch_size
    classifier.feature_names = features
    due = time.monotonic() + checkpoint_every

    def keep(path: Path, **more: str) -> None:
        if _changes(fit.table) != unchanged:
            raise DataError(f"{fit.table}: it was changed while it was learned from. Begin again when it is complete.")
        counts = {"rows": learned.rows, "right": learned.num_correct}
        texts = {"fit": identity, "progress": json.dumps(counts), "feature_names": json.dumps(features)}
        classifier.save(path, **texts, **more)

    for block in file.batches(features, fit.label, size=size * max(1, BLOCK // size), skip=learned.rows):
        labels = np.array(block.labels)
        for start in range(0, len(labels), size):
            x, y = block.features[start : start + size], labels[start : start + size]
            guesses = classifier.predict(x) if classifier.rows else np.full(len(y), "")
            classifier.learn(x, y)
            learned.num_correct += int((guesses == y).sum())
            learned.rows += len(y)
            if stop():
                keep(fit.checkpoint)
                return learned
            if time.monotonic() >= due:
                keep(fit.checkpoint)
                due = time.monotonic() + checkpoint_every
        progress(file.position, file.size)
        watch(learned)
    if not learned.rows:
        raise DataError(f"{fit.table}: there are no rows in it.")
    keep(fit.model, label=fit.label, start=stream_index or "")
    fit.discard_checkpoint()
    learned.finished = True
    return learned


def _finished(fit: TableFit, table: str) -> FitProgress | None:
    """What came out of the same fit, where it has come to its end before."""
    try:
        texts = read_metadata(fit.model)
    except UsageError:  # there is none, or something else is there
        return None
    start = None if fit.start is None else texts.get("start")
    if "start" not in texts or texts.get("fit") != fit.identity(table, start):
        return None
    if fit.start is not None and not _same_file(fit.start, fit.model) and _digest(fit.start) != start:
        return None
    classifier, texts = OnlineClassifier.load(fit.model)
    rows, right = _counts(fit.model, texts)
    return FitProgress(classifier, rows, right, finished=True, repeated=True)


def _resume_or_start(fit: TableFit, features: Sequence[str], identity: str) -> FitProgress:
    """A fit at its beginning, or where a checkpoint says that it was cut."""
    if fit.checkpoint.exists():
        classifier, texts = OnlineClassifier.load(fit.checkpoint)
        if texts.get("fit") != identity:
            raise UsageError(
                f"{fit.checkpoint}: what is kept there is of another fit: other rows, columns or settings, or another "
                "version of gmed. Give those again to go on with it, or remove it to begin anew."
            )
        rows, right = _counts(fit.checkpoint, texts)
        return FitProgress(classifier, rows, right, resumed=rows)
    if fit.start is None:
        return FitProgress(OnlineClassifier(fit.settings, len(features), fit.seed))
    classifier, texts = OnlineClassifier.load(fit.start)
    if feature_names(fit.start, texts) != list(features):
        raise UsageError(f"{fit.table}: its columns are not those that {fit.start} has learned from, in their order")
    return FitProgress(classifier)


def feature_names(model: Path, texts: dict[str, str]) -> list[str]:
    """The names of the columns that a saved classifier has learned from."""
    try:
        names = json.loads(texts.get("feature_names", "null"))
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{model}: it does not know the names of its columns; it has learned from arrays without any")
    return names


def predict_table(
    model: Path, table: Path, progress: Progress = no_progress
) -> Iterator[tuple[OnlineClassifier, np.ndarray, tuple[str, ...]]]:
    """Predictions for the rows of a table, block by block.

    Yields the classifier, (rows, classes) scores, and the labels where the table has the column that they were
    learned from.
    """
    classifier, texts = OnlineClassifier.load(model)
    names, file = feature_names(model, texts), TableFile(table)
    if lacking := [name for name in names if name not in file.header]:
        raise DataError(f"{table} has no column {lacking[0]!r}, which {model} learned from")
    label = texts.get("label")
    known = label if label in file.header else None
    for block in file.batches(names, known):
        yield classifier, classifier.scores(block.features), block.labels
        progress(file.position, file.size)


def _counts(path: Path, texts: dict[str, str]) -> tuple[int, int]:
    """How many rows of its table a fit has learned from, and how many of them were predicted rightly before."""
    try:
        counts = json.loads(texts["progress"])
        return check_int("rows", counts["rows"], minimum=0), check_int("right", counts["right"], minimum=0)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: what it says of its fit is damaged ({error})") from None


def _digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None


def _changes(path: Path) -> tuple[int, int]:
    """What becomes another when a file is written to."""
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    return found.st_size, found.st_mtime_ns


def _same_file(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
