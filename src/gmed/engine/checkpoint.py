"""Half-finished runs, kept so that a sweep that was killed goes on where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gmed.engine.spec import RunSpec
from gmed.errors import UsageError
from gmed.io.files import write_bytes
from gmed.learners.state import read_labels, read_state, write_state


@dataclass(frozen=True)
class Checkpoint:
    """A run between two steps.

    Attributes
    ----------
    seen
        How many examples of its stream it has learned from.
    accuracy
        What was found at the points of evaluation behind it.
    seconds
        Time spent so far, by stage.
    resumed_at
        Where it was resumed before, in examples.
    state
        The learner's.
    untrained
        What was found before the first step.
    passes
        How many examples have gone through the model, ``forward`` and ``backward``; not known in older checkpoints.
    right
        How many examples were predicted rightly before they were learned from, if that is asked.
    memory
        How many examples of each class were stored at the points of evaluation behind it; not known in older ones.
    """

    seen: int
    accuracy: list[list[float]]
    seconds: dict[str, float]
    resumed_at: list[int]
    state: dict[str, Tensor]
    untrained: list[float] | None = None
    passes: dict[str, int] | None = None
    right: int | None = None
    memory: list[list[int]] | None = None

    def sound(self) -> bool:
        """Whether everything is of its kind, as what is read from a file may not be."""
        kinds = (self.seen, int), (self.accuracy, list), (self.seconds, dict), (self.resumed_at, list)
        rows = [] if self.untrained is None else [self.untrained]
        counts = [] if self.right is None else [self.right]
        if self.passes is not None:
            if type(self.passes) is not dict or self.passes.keys() != {"forward", "backward"}:
                return False
            counts += self.passes.values()
        if self.memory is not None:
            if type(self.memory) is not list or len(self.memory) != len(self.accuracy):
                return False
            for row in self.memory:
                counts += row if type(row) is list else [-1]
        return (
            all(type(value) is kind for value, kind in kinds)
            and all(type(count) is int and count >= 0 for count in (self.seen, *self.resumed_at, *counts))
            and all(type(row) is list and all(type(share) is float for share in row) for row in (*self.accuracy, *rows))
            and all(type(seconds) in (int, float) for seconds in self.seconds.values())
        )


LEAST_BETWEEN = 50.0
"""Time between checkpoints, in times what writing them takes."""


class Checkpoints:
    """A folder with a file for every run under way.

    Parameters
    ----------
    folder
        Made when it is first needed.
    every
        Seconds between checkpoints of a run; longer where writing them would take more than a fiftieth of the time.
    """

    def __init__(self, folder: Path, every: float) -> None:
        self.folder, self.every = folder, every
        self._due = time.monotonic() + every

    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() >= self._due

    def written(self, seconds: float) -> None:
        """They have just been written, in so much time: when the next ones are due."""
        self._due = time.monotonic() + max(self.every, LEAST_BETWEEN * seconds)

    def save(self, spec: RunSpec, checkpoint: Checkpoint) -> None:
        """Replace the run's checkpoint, whole or not at all."""
        progress = {
            "seen": checkpoint.seen,
            "accuracy": checkpoint.accuracy,
            "seconds": checkpoint.seconds,
            "resumed_at": checkpoint.resumed_at,
            "untrained": checkpoint.untrained,
            "passes": checkpoint.passes,
            "right": checkpoint.right,
            "memory": checkpoint.memory,
        }
        labels = {
            "run": spec.key,
            "benchmark": spec.benchmark.name,
            "method": spec.method.name,
            "progress": json.dumps(progress),
        }
        self._write(spec, lambda path: write_state(path, checkpoint.state, labels))

    def load(self, spec: RunSpec) -> Checkpoint | None:
        """The run's checkpoint, if there is a sound one."""
        try:
            state, labels = read_state(self._path(spec), {"run": spec.key})
            checkpoint = Checkpoint(**json.loads(labels["progress"]), state=state)
        except (UsageError, KeyError, TypeError, ValueError, RecursionError):
            return None
        return checkpoint if checkpoint.sound() else None

    def file(self, spec: RunSpec) -> bytes | None:
        """The run's checkpoint as it is kept, if there is one: to be taken elsewhere."""
        try:
            return self._path(spec).read_bytes()
        except OSError:
            return None

    def keep_file(self, spec: RunSpec, content: bytes) -> None:
        """Keep a checkpoint that comes from elsewhere."""
        self._write(spec, lambda path: write_bytes(path, content))

    def _write(self, spec: RunSpec, write: Callable[[Path], None]) -> None:
        """Twice if need be: the folder goes with the last of its files, which another process may just have removed."""
        for attempt in (1, 2):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"{self.folder}: cannot be made ({error.strerror}); checkpoints go there") from None
            try:
                return write(self._path(spec))
            except UsageError:
                if attempt == 2 or self.folder.exists():
                    raise

    def discard(self, spec: RunSpec) -> None:
        """Remove the run's checkpoint; with the last one the folder goes too."""
        with suppress(OSError):
            self._path(spec).unlink(missing_ok=True)
            self.folder.rmdir()

    def _path(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.key}.safetensors"


def checkpointed(path: Path) -> tuple[str, str] | None:
    """The benchmark and method of the run a checkpoint is of, if it is one."""
    try:
        labels = read_labels(path)
        return labels["benchmark"], labels["method"]
    except (UsageError, KeyError):
        return None
