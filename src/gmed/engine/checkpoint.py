"""Checkpoints of unfinished runs, from which an interrupted sweep resumes."""

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
    """Number of examples passed through the model, forward and backward."""

    forward: Count
    backward: Count


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two steps.

    Attributes
    ----------
    seen
        Number of examples of its stream that it has trained on.
    accuracy
        Accuracies at the points of evaluation so far.
    seconds
        Seconds spent so far, by stage.
    resumed_at
        The numbers of examples seen at which it was resumed before.
    state
        The state of the learner.
    untrained
        Accuracy on each task before the first step.
    passes
        Number of examples passed through the model, ``forward`` and ``backward``; unknown in older checkpoints.
    right
        Number of examples predicted correctly before the learner trained on them, if requested.
    memory
        Number of stored examples of each class at the points of evaluation so far; unknown in older checkpoints.
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
        """Raise an error if ``memory`` and ``accuracy`` have different numbers of points of evaluation."""
        if self.memory is not None and len(self.memory) != len(self.accuracy):
            raise RecordError("must have one row for each point of evaluation", ".memory")


FIRST_FORMAT = "gmed-state/1"
"""The format of the first versions, the earliest of which wrote no checksum."""

FIRST_METADATA = {"format", "run", "benchmark", "method", "progress"}
"""The only metadata that a checkpoint without a checksum may have."""

MIN_INTERVAL_RATIO = 50.0
"""The minimum time between checkpoints, as a multiple of the time it takes to write them."""


def _warn(text: str) -> None:
    warnings.warn(text, GmedWarning, stacklevel=4)


@dataclass(eq=False)
class Checkpoints:
    """A folder with a checkpoint file for every unfinished run.

    A run does not fail because a checkpoint cannot be written: a warning is issued once, and the run continues. Later
    checkpoints are tried again.

    Parameters
    ----------
    folder
        The folder; created when first needed.
    every
        Seconds between checkpoints of a run; more if writing them would take more than a fiftieth of the time.

    Attributes
    ----------
    warn
        Called with the text of a warning.
    """

    folder: Path
    every: float

    def __post_init__(self) -> None:
        self._due = time.monotonic() + self.every
        self.warn: Callable[[str], None] = _warn
        self._warned = False

    def is_due(self) -> bool:
        """Return whether it is time for the next checkpoints."""
        return time.monotonic() >= self._due

    def mark_written(self, seconds: float) -> None:
        """Schedule the next checkpoints, given the time that writing the last ones took."""
        self._due = time.monotonic() + max(self.every, MIN_INTERVAL_RATIO * seconds)

    def save(self, spec: RunSpec, checkpoint: Checkpoint) -> None:
        """Replace the run's checkpoint atomically."""
        self.write_file(spec, _to_bytes(spec, checkpoint))

    def load(self, spec: RunSpec) -> Checkpoint | None:
        """Return the run's checkpoint, if there is a valid one."""
        content = self.read_file(spec)
        return None if content is None else _from_bytes(spec, content)

    def read_file(self, spec: RunSpec) -> bytes | None:
        """Return the bytes of the run's checkpoint file, if there is one, for another process."""
        try:
            return read_bytes(self._path(spec))
        except OSError:
            return None

    def write_file(self, spec: RunSpec, content: bytes) -> None:
        """Write the bytes of a checkpoint file, for example from another process; warn if that fails."""
        try:
            self._write(self._path(spec), content)
        except (UsageError, OSError) as error:
            reason = next((e.strerror for e in (error, error.__context__) if isinstance(e, OSError) and e.strerror), "")
            if not self._warned:
                self._warned = True
                self.warn(
                    f"{self.folder}: checkpoints cannot be written ({reason or error}). Runs continue without them, "
                    "but a stopped run will start over. Free disk space or fix the permissions."
                )

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file; try again if another process has just removed the folder together with its last file."""
        for attempt in (1, 2):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                return write_bytes(path, content)
            except UsageError:
                if attempt == 2 or self.folder.exists():
                    raise

    def discard(self, spec: RunSpec) -> None:
        """Remove the run's checkpoint and its leftover temporary files; remove the folder too if it is then empty."""
        path = self._path(spec)
        with suppress(OSError):
            path.unlink(missing_ok=True)
        self.remove_stale(path.name)

    def remove_stale(self, name: str | None = None) -> None:
        """Remove temporary files of killed writers, for one file or all; remove the folder too if it is then empty."""
        remove_stale_files(self.folder, name)
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.key}.safetensors"


class CheckpointsInMemory(Checkpoints):
    """Checkpoints without a disk, for a task that receives checkpoints and returns new ones.

    Parameters
    ----------
    files
        The bytes of checkpoint files, by the keys of their runs.
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


def _to_bytes(spec: RunSpec, checkpoint: Checkpoint) -> bytes:
    metadata = {
        "format": FORMAT,
        "run": spec.key,
        "benchmark": spec.benchmark.name,
        "method": spec.method.name,
        "progress": json.dumps(encode(checkpoint)),
    }
    state = {name: tensor.contiguous() for name, tensor in checkpoint.state.items()}
    return save(state, {**metadata, "checksum": checksum(state, metadata)})


def _from_bytes(spec: RunSpec, content: bytes) -> Checkpoint | None:
    """Return the run's checkpoint, if the bytes are one, complete and unaltered."""
    try:
        state = load(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        stored_checksum = metadata.pop("checksum", None)
        if metadata["format"] not in (FORMAT, FIRST_FORMAT) or metadata["run"] != spec.key:
            return None
        if stored_checksum is None and (metadata["format"] != FIRST_FORMAT or not metadata.keys() <= FIRST_METADATA):
            return None
        if stored_checksum is not None and stored_checksum != checksum(state, metadata):
            return None
        return decode(Checkpoint, json.loads(metadata["progress"]), state=state)
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError):
        return None  # RecursionError is a RuntimeError


def read_run_name(path: Path) -> tuple[str, str] | None:
    """Return the benchmark and method of a checkpoint file's run, or ``None`` if it is not a checkpoint file."""
    try:
        metadata = read_metadata(path)
        return metadata["benchmark"], metadata["method"]
    except (UsageError, KeyError):
        return None
