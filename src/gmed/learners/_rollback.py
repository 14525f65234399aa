"""Undo a step that failed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gmed.io.user_code import is_builtin


class Snapshot:
    """Copies of tensors, made together: on a GPU in a kernel or two however many there are.

    >>> a, b = torch.zeros(2), torch.ones(3)
    >>> before = Snapshot([a, b])
    >>> _ = a.add_(5), b.mul_(7)
    >>> before.restore()
    >>> a.tolist(), b.tolist()
    ([0.0, 0.0], [1.0, 1.0, 1.0])
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
        self._held = [(alike, torch.cat([t.flatten() for t in alike])) for alike in kinds.values()]

    def restore(self) -> None:
        """Put everything back as it was."""
        for alike, copy in self._held:
            for tensor, part in zip(alike, copy.split([t.numel() for t in alike]), strict=True):  # type: ignore[no-untyped-call]
                tensor.copy_(part.view_as(tensor))


if TYPE_CHECKING:
    from gmed.learners.base import Learner


class Rollback:
    """A learner as it is before a step: should what is inside the block fail, it becomes that again.

    That is its memory, its model's buffers (batch-norm statistics), what was registered as an extra and, where
    something can fail after the first update (``restores_parameters``, a model that may write into its input, which is
    noticed at the end, and a learner, memory or optimizer of somebody's own), parameters and what the optimizer
    remembers.
    Inside, memory is where the model is, and laid out for the first batch.
    """

    def __init__(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        self.learner, self.x, self.y = learner, x, y
        kinds = map(type, _parts(learner))
        unknown = not (learner._preserves_inputs and all(map(_is_known, kinds)))
        self.restores_parameters = learner.restores_parameters or unknown
        self.memory = learner.memory
        self.memory_is_new = self.memory is not None and not self.memory.is_allocated

    def __enter__(self) -> None:
        learner, memory = self.learner, self.memory
        self.extras = learner._extras.items() if learner._extras.names else []
        tensors = [*learner.model_info.buffers, *(learner._extras.tensors() if self.extras else ())]
        if self.restores_parameters:
            tensors += learner.model.parameters()
            if learner.optimizer is not None:
                tensors += learner.optimizer.tensors()
        self.before = Snapshot(tensors) if tensors else None
        self.remembered = learner.optimizer.remembered() if learner.optimizer is not None else set()
        if memory is not None and self.memory_is_new:
            try:
                memory.allocate(self.x, self.y)
            except BaseException:
                memory.clear()
                raise
        elif memory is not None:
            memory.to(self.x)
            memory.begin_transaction()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.restore()
        elif self.memory is not None:
            self.memory.commit()

    def restore(self) -> None:
        """Put everything back."""
        learner = self.learner
        if self.memory is not None and self.memory_is_new:
            self.memory.clear()
        elif self.memory is not None:
            self.memory.rollback()
        for name, value in self.extras:
            setattr(learner, name, value)
        if self.before is not None:
            self.before.restore()
        if learner.optimizer is not None and self.restores_parameters:
            learner.optimizer.drop_all_but(self.remembered)


def _parts(learner: Learner) -> list[Any]:
    """What runs in a step after its first update has begun."""
    optimizer = None if learner.optimizer is None else learner.optimizer.optimizer
    return [part for part in (learner, learner.memory, optimizer) if part is not None]


@cache
def _is_known(part: type) -> bool:
    return is_builtin(part) or part.__module__.partition(".")[0] == "torch"
