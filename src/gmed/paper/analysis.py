"""What the paper measures of edits besides accuracy: how they agree with the optimal edit, and what they change."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gmed.editing import GMED
from gmed.editing.base import EditContext, History
from gmed.editing.optimal_edit import forgetting_gradient
from gmed.engine import RunSpec
from gmed.engine.run import make_learner, make_stream
from gmed.engine.training import train
from gmed.errors import UsageError
from gmed.learners.replay import Replay
from gmed.streams import to_float


@dataclass(frozen=True)
class WatchedGMED(GMED):
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


def similarity_to_the_optimal_edit(spec: RunSpec, device: str = "cpu", data_dir: Path | None = None) -> list[float]:
    """The similarities over a run of a method that edits with GMED, step by step.

    >>> found = similarity_to_the_optimal_edit(RunSpec.make("split-mnist", "er+gmed(alpha=1.0)", seed=0))
    >>> len(found), all(-1 <= similarity <= 1 for similarity in found)
    (499, True)
    """
    learner = editing_learner(spec, device)
    watched = WatchedGMED(**asdict(learner.editing))  # type: ignore[call-overload]
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
