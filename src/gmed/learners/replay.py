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
    """Edited examples: those drawn first, in their order, then any extra ones."""

    slots: Tensor
    x: Tensor


class PlainReplayOptions(TypedDict, total=False):
    """What every learner with a memory takes."""

    lr: Required[float]
    memory: Required[Any]
    replay_size: int
    criterion: Loss
    optimizer: MakeOptimizer | None
    seed: int


class EditedReplayOptions(PlainReplayOptions, total=False):
    """The same, for a method that takes an edit."""

    editing: Edit | None


class ReplayOptions(EditedReplayOptions, total=False):
    """All that :class:`Replay` takes, for constructors that pass it on: ``**replay: Unpack[ReplayOptions]``.

    A method that takes no edit, or retrieves in its own way, passes on one of the shorter lists.
    """

    retrieval: Retrieval | None


@old_attributes(retrieved="retrieve", remember="update_memory")
class Replay(Learner):
    """Learn from the incoming batch and from stored examples, edited first if there is an edit.

    A method is a subclass. Most override :meth:`loss` alone; one whose step has other parts overrides :meth:`step`.

    Parameters
    ----------
    model, lr, criterion, optimizer, seed
        As in :class:`~gmed.learners.Learner`.
    memory
        Where examples are kept, such as ``gmed.memory.Reservoir(500)``. It belongs to this learner.
    editing
        How drawn examples are changed, such as ``gmed.editing.GMED(alpha=5.0, beta=0.01)``; by default not.
    replay_size
        How many stored examples are drawn per step; all of them while fewer are stored.
    retrieval
        Which stored examples are replayed, where that is not left to chance: a :class:`~gmed.retrieval.Retrieval`.
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
        self._history: list[History] = []  # kept for edits that declare an oracle, and for them alone

    def step(self, x: Tensor, y: Tensor) -> None:
        """Algorithm 1 of the paper; without an edit, plain experience replay."""
        ahead = self.look_ahead(x, y)  # θ' = SGD(ℓ_stream, θ, τ), once somebody asks for it
        drawn = self.retrieve(ahead)  # (x_m, y_m) ~ M
        edited = self.edit(drawn, ahead)  # x_m ← x_m + γ^k α ∇_x (d - β ℓ_before)
        x_m, y_m = edited.x[: len(drawn)], self.memory.y[drawn]

        self.sgd_step(ahead, x_m, y_m, drawn)  # θ ← SGD(ℓ({(x_m, y_m), (x, y)}), θ, τ)
        self.write_back(edited)  # replace (x_m, y_m) in M

        for again in range(1, self.updates_per_batch):
            ahead = self.look_ahead(x, y)
            drawn = self.retrieve(ahead, f"replay {again}")
            self.sgd_step(ahead, self.memory.x[drawn], self.memory.y[drawn], drawn)
        self.update_memory(x, y)  # reservoir_update(x, y, M)

    def replayed(self, purpose: str) -> Batch | None:
        """Another batch drawn from memory, for a loss of several; ``None`` while memory is empty.

        It is drawn independently of what the step replays, and goes through the model by itself.
        """
        drawn = self.sample(purpose)
        if not len(drawn):
            return None
        x = self.memory.x[drawn]
        return Batch(x, self.memory.y[drawn], self.model(x), partial(self._stored, drawn))

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
        """The slots of a batch to replay: a draw, unless this learner retrieves otherwise."""
        if self.retrieval is None or not len(self.memory):
            return self.sample(purpose)
        return self._validate_slots(self.retrieval.retrieve(self.memory, self.replay_size, ahead, self.random(purpose)))

    def edit(self, drawn: Tensor, ahead: LookAhead) -> EditedBatch:
        """The drawn examples, edited if this learner edits; nothing is stored yet."""
        if self.editing is None or not len(drawn):
            return EditedBatch(drawn, self.memory.x.index_select(0, drawn))
        edited = EditedBatch(drawn, self._edit_slots(drawn, ahead, "editing"))
        if self.editing.extra and len(extra := self._sample_extra(drawn)):
            x = self._edit_slots(extra, ahead, "extra editing")
            edited = EditedBatch(torch.cat([drawn, extra]), torch.cat([edited.x, x]))
        return edited

    def _sample_extra(self, drawn: Tensor) -> Tensor:
        """Slots of further examples to edit, none of which was drawn."""
        assert self.editing is not None
        most, memory = self.editing.extra, self.memory

        def choose(taken: NDArray[np.int64]) -> NDArray[np.int64]:
            others = np.setdiff1d(memory.occupied(), taken)
            return self.random("extra").choice(others, min(most, len(others)), replace=False)

        decided, now = self.draw_fn_of(drawn), self.steps
        if decided is None:
            return torch.from_numpy(choose(drawn.cpu().numpy())).to(drawn.device)
        return self.draw("extra", lambda: choose(drawn.cpu().numpy() if self.steps == now else decided()))

    def write_back(self, edited: EditedBatch) -> None:
        """Edited examples take the place of the stored ones."""
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
        x = m.x[slots]
        edited = self.editing.edit(x, m.y[slots], m.edit_count[slots], context)
        if not isinstance(edited, Tensor) or edited.shape != x.shape or edited.dtype != x.dtype:
            given = f"{edited.dtype} {tuple(edited.shape)}" if isinstance(edited, Tensor) else type(edited).__name__
            raise UsageError(
                f"{type(self.editing).__name__}.edit must return the examples it was given, changed: "
                f"{x.dtype} {tuple(x.shape)}, not {given}"
            )
        return edited

    def _validate_slots(self, retrieve: object) -> Tensor:
        """What a retrieval returned, or the error that says why it is of no use."""
        slots = torch.as_tensor(retrieve, device=self.memory.y.device)
        stored = torch.from_numpy(self.memory.occupied()).to(slots.device)
        sound = slots.ndim == 1 and slots.dtype == torch.int64 and bool(torch.isin(slots, stored).all())
        if not sound or len(set(slots.tolist())) != len(slots) or not 0 < len(slots) <= self.replay_size:
            raise UsageError(
                f"{type(self.retrieval).__name__}.retrieve must return 1 to {self.replay_size} slots that hold an "
                f"example, none twice, as int64; not {slots.dtype} {tuple(slots.shape)}: {slots.tolist()}"
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
                f"{type(self.editing).__name__} keeps every example it has observed, for analysis; such a learner "
                "cannot forget one"
            )
        return super().stored_examples()

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"history.x": self._joined_history().x, "history.y": self._joined_history().y} if self._history else {}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self._history = [History(state["history.x"], state["history.y"])] if "history.x" in state else []
