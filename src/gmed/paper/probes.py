"""Measurements of edits other than accuracy, and the history of edited examples in one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gmed.data.dataset import Progress, no_progress
from gmed.editing import GMED
from gmed.editing.base import EditContext, History
from gmed.editing.optimal_edit import forgetting_gradient
from gmed.engine import RunSpec
from gmed.engine.runner import make_learner, make_stream
from gmed.engine.training import train
from gmed.errors import UsageError
from gmed.learners.replay import Replay
from gmed.memory import Memory
from gmed.retrieval import interference
from gmed.rng import make_rng
from gmed.streams import Stream, to_float


@dataclass(frozen=True)
class InstrumentedGMED(GMED):
    """GMED that measures, at every step, the cosine similarity of its edits to the optimal ones (Figure 3).

    The optimal direction is that of steepest descent of the loss of earlier examples after the real update. The loss is
    estimated on a new sample of them at every step.

    Attributes
    ----------
    examples
        The size of that sample.
    similarities
        The mean similarity over the edited examples, by step.
    """

    needs_history: ClassVar[bool] = True

    examples: int = 500
    similarities: list[float] = field(default_factory=list, compare=False)

    @property
    def capturable(self) -> bool:
        return False

    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        edited = super().edit(x_m, y_m, edit_count, context)
        assert context.history is not None
        count = len(context.history.y)
        if count:
            sample = torch.from_numpy(context.random().choice(count, min(self.examples, count), replace=False))
            earlier = History(*(part[sample.to(y_m.device)] for part in context.history))
            optimal = -forgetting_gradient(context.lookahead, x_m, y_m, earlier)
            similarity = cosine_similarity((edited - x_m).flatten(1), optimal.flatten(1), dim=1)
            self.similarities.append(float(similarity.mean()))
        return edited


def similarity_to_optimal_edit(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> list[float]:
    """Return the similarities over a run of a method that edits with GMED, one for each step.

    >>> similarities = similarity_to_optimal_edit(RunSpec.make("split-mnist", "er+gmed(alpha=1.0)", seed=0))
    >>> len(similarities), all(-1 <= similarity <= 1 for similarity in similarities)
    (499, True)
    """
    learner = editing_learner(spec, device)
    instrumented = InstrumentedGMED(**asdict(learner.editing))  # type: ignore[call-overload]
    learner.editing = instrumented
    for _ in train(learner, make_stream(spec, torch.device(device), data_dir), spec.benchmark.batch_size):
        pass
    return instrumented.similarities


class EditedMemory(NamedTuple):
    """The content of memory at the end of a run, on the CPU.

    Attributes
    ----------
    before, after
        The original examples, and the stored ones.
    label, edit_count, stream_index
        Their labels, how often each was edited, and its index in the stream.
    """

    before: Tensor
    after: Tensor
    label: Tensor
    edit_count: Tensor
    stream_index: Tensor


def edited_memory(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> EditedMemory:
    """Return the memory of a method that edits with GMED at the end of its training.

    >>> memory = edited_memory(RunSpec.make("split-mnist", "er(memory=50)+gmed(alpha=0.0)", seed=0))
    >>> len(memory.label), torch.equal(memory.before, memory.after)
    (50, True)
    """
    return EditedMemory(*(column.cpu() for column in _train_to_end(spec, device, data_dir)[1]))


def prediction_change(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> float:
    """Return the share of stored examples whose predicted class the edits have changed (Table 16).

    >>> prediction_change(RunSpec.make("split-mnist", "er+gmed(alpha=0.0)", seed=0))
    0.0
    """
    learner, memory = _train_to_end(spec, device, data_dir)
    changed = learner.predict(memory.after) != learner.predict(memory.before)
    return float(changed.float().mean())


def _train_to_end(spec: RunSpec, device: str, data_dir: Path | None) -> tuple[Replay, EditedMemory]:
    stream = make_stream(spec, torch.device(device), data_dir)
    learner = editing_learner(spec, device)
    for _ in train(learner, stream, spec.benchmark.batch_size):
        pass
    memory = learner.memory
    slots = torch.from_numpy(memory.occupied()).to(memory.x.device)
    stream_index = memory.stream_index[slots]
    before = to_float(stream.x[stream_index])
    return learner, EditedMemory(before, memory.x[slots], memory.y[slots], memory.edit_count[slots], stream_index)


def editing_learner(spec: RunSpec, device: str) -> Replay:
    """Return the learner of a run, or raise an error if it does not edit with GMED."""
    learner = make_learner(spec, torch.device(device))
    if not isinstance(learner, Replay) or not isinstance(learner.editing, GMED):
        raise UsageError(f"{spec.method.name}: only methods that edit with gmed can be analyzed")
    return learner


NUM_SNAPSHOTS = 24
"""Approximate number of snapshots of memory in a run; there is one at every point of evaluation."""

SLOTS = 100
"""Number of memory slots in a snapshot."""


@dataclass(frozen=True)
class RecordingGMED(GMED):
    """GMED that records how much the incoming batch would increase the loss of each example before and after its edit.

    Attributes
    ----------
    increases
        For every step that edits, a tensor of two rows, before and after the edit, with a column for each example.
    """

    increases: list[Tensor] = field(default_factory=list, compare=False)

    @property
    def capturable(self) -> bool:
        return False

    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        edited = super().edit(x_m, y_m, edit_count, context)
        self.increases.append(torch.stack([interference(context.lookahead, x, y_m).cpu() for x in (x_m, edited)]))
        return edited


class MemorySnapshot(NamedTuple):
    """Some slots of memory at one step, on the CPU.

    Attributes
    ----------
    seen
        Number of examples of the stream learned so far.
    x, label, edit_count, stream_index
        The stored examples, their labels, how often each was edited, and its index in the stream; -1 in an empty slot.
    """

    seen: int
    x: Tensor
    label: Tensor
    edit_count: Tensor
    stream_index: Tensor


class EditHistory(NamedTuple):
    """Memory and loss increases over one run.

    Attributes
    ----------
    snapshots
        The same slots of memory over time.
    increases
        For each segment of the stream between points of evaluation, the loss increase of every edited example: a row
        before its edit, and a row after it.
    originals
        The original examples of those stored in these slots at the end.
    total
        The number of examples in the stream.
    """

    snapshots: list[MemorySnapshot]
    increases: list[Tensor]
    originals: Tensor
    total: int


def edit_history(
    spec: RunSpec, device: str = "cpu", data_dir: Path | None = None, progress: Progress = no_progress
) -> EditHistory:
    """Record a run of a method that edits with GMED, without changing its result.

    >>> history = edit_history(RunSpec.make("split-mnist", "er(memory=50)+gmed", seed=0))
    >>> len(history.snapshots), history.snapshots[-1].seen, [len(part) for part in history.increases]
    (20, 5000, [2, 2, 2, 2, 2])
    """
    stream = make_stream(spec, torch.device(device), data_dir)
    learner = editing_learner(spec, device)
    if learner.memory.capacity > len(stream):
        raise UsageError(
            f"{spec.method.name}: the memory must not be larger than the stream, which has {len(stream)} examples"
        )
    recording = RecordingGMED(**asdict(learner.editing))  # type: ignore[call-overload]
    learner.editing = recording
    memory, size = learner.memory, spec.benchmark.batch_size
    slots = make_rng(spec.seed, "slots looked at").permutation(memory.capacity)[:SLOTS]
    snapshots, increases = [], []
    for start, stop in pairwise((0, *stream.eval_points)):
        for begin, end in pairwise(split_points(start, stop, size, max(1, NUM_SNAPSHOTS // len(stream.eval_points)))):
            for _ in train(learner, stream, size, begin, end):
                pass
            snapshots.append(_take_snapshot(memory, end, slots))
            progress(end, len(stream))
        increases.append(torch.cat([torch.zeros(2, 0), *recording.increases], dim=1))
        recording.increases.clear()
    return EditHistory(snapshots, increases, _originals(stream, snapshots[-1].stream_index), len(stream))


def split_points(start: int, stop: int, batch_size: int, parts: int) -> list[int]:
    """Return the points that divide a segment of the stream into parts of whole batches, except the last one.

    >>> split_points(0, 1000, 10, 4), split_points(1000, 1025, 10, 4)
    ([0, 250, 500, 750, 1000], [1000, 1010, 1025])
    """
    batches = (stop - start) // batch_size
    inner = {start + batch_size * (batches * part // parts) for part in range(1, parts)}
    return [start, *sorted(inner - {start, stop}), stop]


def _take_snapshot(memory: Memory, seen: int, slots: NDArray[np.int64]) -> MemorySnapshot:
    rows = torch.from_numpy(slots).to(memory.x.device)
    columns = (memory.x, memory.y, memory.edit_count, memory.stream_index)
    return MemorySnapshot(seen, *(column[rows].cpu() for column in columns))  # indexing copies


def _originals(stream: Stream, stream_index: Tensor) -> Tensor:
    return to_float(stream.x.cpu()[stream_index.clamp(min=0)])
