"""Half-finished runs, kept so that a sweep that was killed goes on where it was."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gmed.engine.spec import RunSpec
from gmed.errors import GmedWarning, UsageError
from gmed.io.files import read_bytes, remove_stale_files, write_bytes
from gmed.io.records import OMITTED, Amount, Count, RecordError, Share, decode, encode
from gmed.io.state import FORMAT, checksum, read_metadata


class PassCounts(TypedDict):
    """Examples that have gone through the model, forward and back."""

    forward: Count
    backward: Count


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

    seen: Count
    accuracy: list[list[Share]]
    seconds: dict[str, Amount]
    resumed_at: list[Count]
    state: Annotated[dict[str, Tensor], OMITTED]
    untrained: list[Share] | None = None
    passes: PassCounts | None = None
    right: Count | None = None
    memory: list[list[Count]] | None = None

    def validate(self) -> None:
        """Refuse counts of another number of points of evaluation."""
        if self.memory is not None and len(self.memory) != len(self.accuracy):
            raise RecordError("has counts for other points of evaluation", ".memory")


FIRST_FORMAT = "gmed-state/1"
"""With a checksum too, but for checkpoints of the first versions, which had no other labels than these."""

FIRST_METADATA = {"format", "run", "benchmark", "method", "progress"}

MIN_INTERVAL_RATIO = 50.0
"""Time between checkpoints, in times what writing them takes."""


def _warn(text: str) -> None:
    warnings.warn(text, GmedWarning, stacklevel=4)


@dataclass(eq=False)
class Checkpoints:
    """A folder with a file for every run under way.

    A checkpoint that cannot be written is no reason for a run to fail: it is warned of once, and the run goes on. Later
    ones are tried again.

    Parameters
    ----------
    folder
        Made when it is first needed.
    every
        Seconds between checkpoints of a run; longer where writing them would take more than a fiftieth of the time.

    Attributes
    ----------
    warn
        Called with what there is to warn of.
    """

    folder: Path
    every: float

    def __post_init__(self) -> None:
        self._due = time.monotonic() + self.every
        self.warn: Callable[[str], None] = _warn
        self._warned = False

    def is_due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() >= self._due

    def mark_written(self, seconds: float) -> None:
        """They have just been written, in so much time: when the next ones are due."""
        self._due = time.monotonic() + max(self.every, MIN_INTERVAL_RATIO * seconds)

    def save(self, spec: RunSpec, checkpoint: Checkpoint) -> None:
        """Replace the run's checkpoint, whole or not at all."""
        self.write_file(spec, _encoded(spec, checkpoint))

    def load(self, spec: RunSpec) -> Checkpoint | None:
        """The run's checkpoint, if there is a sound one."""
        content = self.read_file(spec)
        return None if content is None else _decoded(spec, content)

    def read_file(self, spec: RunSpec) -> bytes | None:
        """The run's checkpoint as it is kept, if there is one: to be taken elsewhere."""
        try:
            return read_bytes(self._path(spec))
        except OSError:
            return None

    def write_file(self, spec: RunSpec, content: bytes) -> None:
        """Keep a checkpoint that comes from elsewhere."""
        try:
            self._write(self._path(spec), content)
        except (UsageError, OSError) as error:
            reason = next((e.strerror for e in (error, error.__context__) if isinstance(e, OSError) and e.strerror), "")
            if not self._warned:
                self._warned = True
                self.warn(
                    f"{self.folder}: checkpoints cannot be written ({reason or error}). Runs go on without them; "
                    "those that are stopped begin again. Make room or fix the permissions."
                )

    def _write(self, path: Path, content: bytes) -> None:
        """Twice if need be: the folder goes with the last of its files, which another process may just have removed."""
        for attempt in (1, 2):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                return write_bytes(path, content)
            except UsageError:
                if attempt == 2 or self.folder.exists():
                    raise

    def discard(self, spec: RunSpec) -> None:
        """Remove the run's checkpoint and what killed writers left of it; with the last one the folder goes too."""
        path = self._path(spec)
        with suppress(OSError):
            path.unlink(missing_ok=True)
        self.remove_stale(path.name)

    def remove_stale(self, name: str | None = None) -> None:
        """Remove what killed writers left, of one file or of all; a folder that is empty then goes too."""
        remove_stale_files(self.folder, name)
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.key}.safetensors"


class CheckpointsInMemory(Checkpoints):
    """The same without a disk, for a task that takes checkpoints along and brings them back.

    Parameters
    ----------
    files
        Checkpoints as they were kept, by the keys of their runs.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(Path(), every=float("inf"))
        self.files = dict(files)

    def read_file(self, spec: RunSpec) -> bytes | None:
        return self.files.get(spec.key)

    def write_file(self, spec: RunSpec, content: bytes) -> None:
        self.files[spec.key] = content

    def discard(self, spec: RunSpec) -> None:
        self.files.pop(spec.key, None)


def _encoded(spec: RunSpec, checkpoint: Checkpoint) -> bytes:
    labels = {
        "format": FORMAT,
        "run": spec.key,
        "benchmark": spec.benchmark.name,
        "method": spec.method.name,
        "progress": json.dumps(encode(checkpoint)),
    }
    state = {name: tensor.contiguous() for name, tensor in checkpoint.state.items()}
    return save(state, {**labels, "checksum": checksum(state, labels)})


def _decoded(spec: RunSpec, content: bytes) -> Checkpoint | None:
    """The run's checkpoint, if that is what the bytes are, whole and unaltered."""
    try:
        state = load(content)
        length = int.from_bytes(content[:8], "little")
        labels = json.loads(content[8 : 8 + length])["__metadata__"]
        written = labels.pop("checksum", None)
        if labels["format"] not in (FORMAT, FIRST_FORMAT) or labels["run"] != spec.key:
            return None
        if written is None and (labels["format"] != FIRST_FORMAT or not labels.keys() <= FIRST_METADATA):
            return None
        if written is not None and written != checksum(state, labels):
            return None
        return decode(Checkpoint, json.loads(labels["progress"]), state=state)
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError):
        return None  # RecursionError is a RuntimeError


def read_run_name(path: Path) -> tuple[str, str] | None:
    """The benchmark and method of the run a checkpoint is of, if it is one."""
    try:
        labels = read_metadata(path)
        return labels["benchmark"], labels["method"]
    except (UsageError, KeyError):
        return None
