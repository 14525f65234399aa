"""What the paper measures of edits besides accuracy, and the history of edited examples in one run."""

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
    """GMED, and at every step the cosine similarity of its edits to the optimal ones (Figure 3 of the paper).

    The optimal direction is that in which the loss of earlier examples after the real update falls fastest; so many of
    them, drawn anew at every step, stand for all.

    Attributes
    ----------
    similarities
        The mean over the edited examples, step by step.
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
            some = torch.from_numpy(context.random().choice(count, min(self.examples, count), replace=False))
            earlier = History(*(part[some.to(y_m.device)] for part in context.history))
            optimal = -forgetting_gradient(context.lookahead, x_m, y_m, earlier)
            found = cosine_similarity((edited - x_m).flatten(1), optimal.flatten(1), dim=1)
            self.similarities.append(float(found.mean()))
        return edited


def similarity_to_optimal_edit(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> list[float]:
    """The similarities over a run of a method that edits with GMED, step by step.

    >>> found = similarity_to_optimal_edit(RunSpec.make("split-mnist", "er+gmed(alpha=1.0)", seed=0))
    >>> len(found), all(-1 <= similarity <= 1 for similarity in found)
    (499, True)
    """
    learner = editing_learner(spec, device)
    watched = InstrumentedGMED(**asdict(learner.editing))  # type: ignore[call-overload]
    learner.editing = watched
    for _ in train(learner, make_stream(spec, torch.device(device), data_dir), spec.benchmark.batch_size):
        pass
    return watched.similarities


class EditedMemory(NamedTuple):
    """What is stored at the end of a run, on the CPU.

    Attributes
    ----------
    before, after
        The examples as they came, and as they are stored now.
    label, age, origin
        Their labels, how often each was edited, and which example of the stream it was.
    """

    before: Tensor
    after: Tensor
    label: Tensor
    edit_count: Tensor
    stream_index: Tensor


def edited_memory(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> EditedMemory:
    """The memory of a method that edits with GMED when its training is over.

    >>> memory = edited_memory(RunSpec.make("split-mnist", "er(memory=50)+gmed(alpha=0.0)", seed=0))
    >>> len(memory.label), torch.equal(memory.before, memory.after)
    (50, True)
    """
    return EditedMemory(*(column.cpu() for column in _trained(spec, device, data_dir)[1]))


def prediction_change(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> float:
    """The share of stored examples that the trained model classifies otherwise than their originals (Table 16).

    >>> prediction_change(RunSpec.make("split-mnist", "er+gmed(alpha=0.0)", seed=0))
    0.0
    """
    learner, memory = _trained(spec, device, data_dir)
    changed = learner.predict(memory.after) != learner.predict(memory.before)
    return float(changed.float().mean())


def _trained(spec: RunSpec, device: str, data_dir: Path | None) -> tuple[Replay, EditedMemory]:
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
    learner = make_learner(spec, torch.device(device))
    if not isinstance(learner, Replay) or not isinstance(learner.editing, GMED):
        raise UsageError(f"{spec.method.name}: only methods that edit with gmed can be analysed so")
    return learner


NUM_SNAPSHOTS = 24
"""About how often memory is looked at during a run; always at the points of evaluation."""

SLOTS = 100
"""How many slots of memory are looked at."""


@dataclass(frozen=True)
class RecordingGMED(GMED):
    """GMED, and of every edit by how much the incoming batch would raise the example's loss before it and after it.

    Attributes
    ----------
    increases
        For every step that edits, a row before and a row after, a column for each example.
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
    """Some slots of memory at one moment, on the CPU.

    Attributes
    ----------
    seen
        How many examples of the stream had been learned from.
    x, label, age, origin
        The stored examples, their labels, how often each was edited, and which example of the stream it was; -1 in a
        slot that is empty.
    """

    seen: int
    x: Tensor
    label: Tensor
    edit_count: Tensor
    stream_index: Tensor


class EditHistory(NamedTuple):
    """What was seen of a run.

    Attributes
    ----------
    looks
        The same slots of memory, moment by moment.
    increases
        For each stretch of stream between points of evaluation, the loss increase of every edited example: a row before
        its edit, a row after it.
    originals
        The examples that were stored at the end in the slots looked at, as they came.
    total
        How many examples the stream has.
    """

    snapshots: list[MemorySnapshot]
    increases: list[Tensor]
    originals: Tensor
    total: int


def edit_history(
    spec: RunSpec, device: str = "cpu", data_dir: Path | None = None, progress: Progress = no_progress
) -> EditHistory:
    """Watch a run of a method that edits with GMED. It computes what it computes unwatched.

    >>> history = edit_history(RunSpec.make("split-mnist", "er(memory=50)+gmed", seed=0))
    >>> len(history.snapshots), history.snapshots[-1].seen, [len(part) for part in history.increases]
    (20, 5000, [2, 2, 2, 2, 2])
    """
    stream = make_stream(spec, torch.device(device), data_dir)
    learner = editing_learner(spec, device)
    if learner.memory.capacity > len(stream):
        raise UsageError(
            f"{spec.method.name}: only memories that the {len(stream)} examples of the stream can fill are watched"
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
            snapshots.append(_look(memory, end, slots))
            progress(end, len(stream))
        increases.append(torch.cat([torch.zeros(2, 0), *recording.increases], dim=1))
        recording.increases.clear()
    return EditHistory(snapshots, increases, _originals(stream, snapshots[-1].stream_index), len(stream))


def split_points(start: int, stop: int, batch_size: int, parts: int) -> list[int]:
    """Where a stretch of stream is divided into so many parts, each but the last a whole number of batches.

    >>> split_points(0, 1000, 10, 4), split_points(1000, 1025, 10, 4)
    ([0, 250, 500, 750, 1000], [1000, 1010, 1025])
    """
    batches = (stop - start) // batch_size
    within = {start + batch_size * (batches * part // parts) for part in range(1, parts)}
    return [start, *sorted(within - {start, stop}), stop]


def _look(memory: Memory, seen: int, slots: NDArray[np.int64]) -> MemorySnapshot:
    rows = torch.from_numpy(slots).to(memory.x.device)
    columns = (memory.x, memory.y, memory.edit_count, memory.stream_index)
    return MemorySnapshot(seen, *(column[rows].cpu() for column in columns))  # indexing copies


def _originals(stream: Stream, stream_index: Tensor) -> Tensor:
    return to_float(stream.x.cpu()[stream_index.clamp(min=0)])
