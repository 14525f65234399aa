"""Roll back a step that failed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gmed.io.user_code import is_builtin


class Snapshot:
    """Copies of tensors, made together: on a GPU in one or two kernels, whatever their number.

    >>> a, b = torch.zeros(2), torch.ones(3)
    >>> before = Snapshot([a, b])
    >>> _ = a.add_(5), b.mul_(7)
    >>> before.restore()
    >>> a.tolist(), b.tolist()
    ([0.0, 0.0], [1.0, 1.0, 1.0])
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
        self._copies = [
            (group, torch.cat([t if t.ndim == 1 else t.flatten() for t in group])) for group in groups.values()
        ]

    def restore(self) -> None:
        """Copy the saved values back into the tensors."""
        for group, copy in self._copies:
            for tensor, part in zip(group, copy.split([t.numel() for t in group]), strict=True):  # type: ignore[no-untyped-call]
                tensor.copy_(part.view_as(tensor))


if TYPE_CHECKING:
    from gmed.learners.base import Learner


class Rollback:
    """Restore a learner to its state before a step if the block raises an error.

    This restores its memory, its model's buffers (batch-norm statistics) and its registered extras. Parameters and the
    state of the optimizer are restored only where something can fail after the first update: with
    ``restores_parameters``, with a model that may write into its input (which is detected at the end), and with a
    custom learner, memory or optimizer.
    Inside the block, memory is on the model's device, and allocated for the first batch.
    """

    def __init__(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        self.learner, self.x, self.y = learner, x, y
        classes = map(type, _parts(learner))
        custom = not (learner._preserves_inputs and all(map(_is_builtin, classes)))
        self.restores_parameters = learner.restores_parameters or custom
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
        self.optimizer_keys = learner.optimizer.state_keys() if learner.optimizer is not None else set()
        if memory is not None and self.memory_is_new:
            try:
                memory.allocate(self.x, self.y)
            except BaseException:
                memory.clear()
                raise
        elif memory is not None:
            memory.to(self.x)
            memory.begin_transaction()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.restore()
        elif self.memory is not None:
            self.memory.commit()

    def restore(self) -> None:
        """Restore the learner to its state before the step."""
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
            learner.optimizer.drop_all_but(self.optimizer_keys)


def _parts(learner: Learner) -> list[Any]:
    """Return the objects whose code runs in a step after its first update has begun."""
    optimizer = None if learner.optimizer is None else learner.optimizer.optimizer
    return [part for part in (learner, learner.memory, optimizer) if part is not None]


@cache
def _is_builtin(cls: type) -> bool:
    return is_builtin(cls) or cls.__module__.partition(".")[0] == "torch"
