"""Learners that replay stored examples: the base class of all methods with a memory that is replayed."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Required, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_attributes, warn
from gmed.editing import Edit, EditContext, History
from gmed.errors import UsageError, check_int
from gmed.learners.base import Learner
from gmed.learners.batch import Batch
from gmed.learners.draws import DrawFn
from gmed.learners.optimizer import MakeOptimizer
from gmed.learners.removal import StoredExamples
from gmed.memory import Memory
from gmed.models import LookAhead, Loss
from gmed.retrieval import Retrieval


class EditedBatch(NamedTuple):
    """Edited examples and their slots: first the drawn ones in order, then any extra ones."""

    slots: Tensor
    x: Tensor


class PlainReplayOptions(TypedDict, total=False):
    """The options of every learner with a memory."""

    lr: Required[float]
    memory: Required[Any]
    replay_size: int
    criterion: Loss
    optimizer: MakeOptimizer | None
    seed: int


class EditedReplayOptions(PlainReplayOptions, total=False):
    """The same with the option ``editing``."""

    editing: Edit | None


class ReplayOptions(EditedReplayOptions, total=False):
    """All options of :class:`Replay`, for constructors that pass them on: ``**replay: Unpack[ReplayOptions]``.

    A method that takes no edit, or has its own retrieval, passes on one of the shorter lists.
    """

    retrieval: Retrieval | None


@old_attributes(retrieved="retrieve", remember="update_memory")
class Replay(Learner):
    """Learn from the incoming batch and from stored examples, which are edited first if there is an edit.

    A method is a subclass. Most override only :meth:`loss`; one with a different step overrides :meth:`step`.

    Parameters
    ----------
    model, lr, criterion, optimizer, seed
        As in :class:`~gmed.learners.Learner`.
    memory
        The memory of examples, such as ``gmed.memory.Reservoir(500)``. No other learner may use it.
    editing
        The edit of drawn examples, such as ``gmed.editing.GMED(alpha=5.0, beta=0.01)``; by default none.
    replay_size
        Number of stored examples drawn per step; all of them while fewer are stored.
    retrieval
        Selects the stored examples to replay (:class:`~gmed.retrieval.Retrieval`); by default they are drawn uniformly.
    """

    memory: Memory
    updates_per_batch: int = 1

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: Memory,
        editing: Edit | None = None,
        replay_size: int = 10,
        retrieval: Retrieval | None = None,
        criterion: Loss = cross_entropy,
        optimizer: MakeOptimizer | None = None,
        seed: int = 0,
    ) -> None:
        if memory is None:
            raise UsageError("replay needs a memory, such as gmed.memory.Reservoir(500)")
        if editing is not None and not isinstance(editing, Edit):
            raise UsageError(f"editing must be an edit such as GMED(alpha=5.0, beta=0.01), not {editing!r}")
        if retrieval is not None and not isinstance(retrieval, Retrieval):
            raise UsageError(f"retrieval must be a gmed.retrieval.Retrieval, not {retrieval!r}")
        super().__init__(model, lr=lr, memory=memory, criterion=criterion, optimizer=optimizer, seed=seed)
        self.editing = editing
        self.retrieval = retrieval
        self.replay_size = check_int("replay_size", replay_size)
        self._history: list[History] = []  # filled only for edits that declare needs_history

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take one step of Algorithm 1 of the paper; without an edit, of plain experience replay."""
        ahead = self.look_ahead(x, y)  # θ' = SGD(ℓ_stream, θ, τ), computed when first needed
        drawn = self.retrieve(ahead)  # (x_m, y_m) ~ M
        edited = self.edit(drawn, ahead)  # x_m ← x_m + γ^k α ∇_x (d - β ℓ_before)
        x_m, y_m = edited.x[: len(drawn)], self.memory.y.index_select(0, drawn)

        self.sgd_step(ahead, x_m, y_m, drawn)  # θ ← SGD(ℓ({(x_m, y_m), (x, y)}), θ, τ)
        self.write_back(edited)  # replace (x_m, y_m) in M

        for update in range(1, self.updates_per_batch):
            ahead = self.look_ahead(x, y)
            drawn = self.retrieve(ahead, f"replay {update}")
            self.sgd_step(ahead, *self.memory.examples(drawn), drawn)
        self.update_memory(x, y)  # reservoir_update(x, y, M)

    def replayed(self, purpose: str) -> Batch | None:
        """Return another batch drawn from memory, for a loss with several replay terms; ``None`` if memory is empty.

        It is drawn independently of what the step replays, and has a separate forward pass.
        """
        drawn = self.sample(purpose)
        if not len(drawn):
            return None
        x, y = self.memory.examples(drawn)
        return Batch(x, y, self.model(x), partial(self._stored, drawn))

    def sample(self, purpose: str | int = "replay", old: str | None = None) -> Tensor:
        """Return the slots of a batch to replay or edit, drawn uniformly."""
        if isinstance(purpose, int) and old is not None:
            warn(f"{type(self).__name__}.sample(count, purpose)", "sample_memory(count, purpose)")
            return self.sample_memory(purpose, old)
        return self.sample_memory(self.replay_size, str(purpose))

    def draw(self, name: str = "replay", draw_fn: DrawFn | None = None) -> Tensor:
        if draw_fn is None:
            warn(f"{type(self).__name__}.draw(purpose)", "sample(purpose)")
            return self.sample(name)
        return super().draw(name, draw_fn)

    def retrieve(self, ahead: LookAhead, purpose: str = "replay") -> Tensor:
        """Return the slots of a batch to replay: a uniform draw, unless this learner has a retrieval."""
        if self.retrieval is None or not len(self.memory):
            return self.sample(purpose)
        return self._validate_slots(self.retrieval.retrieve(self.memory, self.replay_size, ahead, self.random(purpose)))

    def edit(self, drawn: Tensor, ahead: LookAhead) -> EditedBatch:
        """Return the drawn examples, edited if this learner has an edit. They are not written to memory yet."""
        if self.editing is None or not len(drawn):
            return EditedBatch(drawn, self.memory.x.index_select(0, drawn))
        edited = EditedBatch(drawn, self._edit_slots(drawn, ahead, "editing"))
        if self.editing.extra and len(extra := self._sample_extra(drawn)):
            x = self._edit_slots(extra, ahead, "extra editing")
            edited = EditedBatch(torch.cat([drawn, extra]), torch.cat([edited.x, x]))
        return edited

    def _sample_extra(self, drawn: Tensor) -> Tensor:
        """Draw slots of further examples to edit, other than those already drawn."""
        assert self.editing is not None
        count, memory = self.editing.extra, self.memory

        def choose(excluded: NDArray[np.int64]) -> NDArray[np.int64]:
            others = np.setdiff1d(memory.occupied(), excluded)
            return self.random("extra").choice(others, min(count, len(others)), replace=False)

        draw_fn, step = self.draw_fn_of(drawn), self.steps
        if draw_fn is None:
            return torch.from_numpy(choose(drawn.cpu().numpy())).to(drawn.device)
        return self.draw("extra", lambda: choose(drawn.cpu().numpy() if self.steps == step else draw_fn()))

    def write_back(self, edited: EditedBatch) -> None:
        """Replace the stored examples by the edited ones, if the edit writes back."""
        if self.editing is not None and self.editing.write_back and len(edited.slots):
            self.memory.replace(edited.slots, edited.x)

    def update_memory(self, x: Tensor, y: Tensor, **columns: Tensor) -> None:
        """Offer the incoming batch to memory."""
        self.add_to_memory(x, y, **columns)
        if self.editing is not None and self.editing.needs_history:
            self._history.append(History(x, y))

    def _edit_slots(self, slots: Tensor, ahead: LookAhead, purpose: str) -> Tensor:
        assert self.editing is not None
        m = self.memory
        history = self._joined_history() if self.editing.needs_history else None
        context = EditContext(
            ahead,
            self.replay_size,
            lambda: self.random(purpose),
            history,
            lambda draw_fn: self.draw(purpose, draw_fn),
        )
        x, y = m.examples(slots)
        edited = self.editing.edit(x, y, m.edit_count.index_select(0, slots), context)
        if not isinstance(edited, Tensor) or edited.shape != x.shape or edited.dtype != x.dtype:
            actual = f"{edited.dtype} {tuple(edited.shape)}" if isinstance(edited, Tensor) else type(edited).__name__
            raise UsageError(
                f"{type(self.editing).__name__}.edit must return a tensor like the examples it was given: "
                f"{x.dtype} {tuple(x.shape)}, not {actual}"
            )
        return edited

    def _validate_slots(self, retrieved: object) -> Tensor:
        """Return the slots that a retrieval returned, or raise an error if they are invalid."""
        slots = torch.as_tensor(retrieved, device=self.memory.y.device)
        occupied = torch.from_numpy(self.memory.occupied()).to(slots.device)
        valid = slots.ndim == 1 and slots.dtype == torch.int64 and bool(torch.isin(slots, occupied).all())
        if not valid or len(set(slots.tolist())) != len(slots) or not 0 < len(slots) <= self.replay_size:
            raise UsageError(
                f"{type(self.retrieval).__name__}.retrieve must return 1 to {self.replay_size} distinct slots that "
                f"hold an example, as int64; not {slots.dtype} {tuple(slots.shape)}: {slots.tolist()}"
            )
        return slots

    def _joined_history(self) -> History:
        if len(self._history) > 1:
            self._history = [History(*(torch.cat(parts) for parts in zip(*self._history, strict=True)))]
        return self._history[0] if self._history else History(self.memory.x[:0], self.memory.y[:0])

    def step_parts(self) -> tuple[Any, ...]:
        return *super().step_parts(), self.editing, self.retrieval

    def stored_examples(self) -> StoredExamples:
        if self.editing is not None and self.editing.needs_history:
            raise UsageError(
                f"{type(self.editing).__name__} stores every example observed, for analysis; a learner with this edit "
                "cannot remove any"
            )
        return super().stored_examples()

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"history.x": self._joined_history().x, "history.y": self._joined_history().y} if self._history else {}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self._history = [History(state["history.x"], state["history.y"])] if "history.x" in state else []
