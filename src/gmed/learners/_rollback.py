"""A step that fails leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from gmed.learners.snapshot import Snapshot
from gmed.memory import Memory

if TYPE_CHECKING:
    from gmed.learners.learner import Learner


@contextmanager
def rollback_on_error(learner: Learner) -> Iterator[None]:
    """Put everything back that a learner's step has changed, should it fail, but for its memory.

    That is: the model's buffers (batch-norm statistics), what was registered as an extra and, where something can fail
    after the first update (``restores_parameters``), parameters and what the optimizer remembers.
    """
    extras, optimizer = learner._extras, learner.optimizer
    tensors = [*learner.model.buffers(), *extras.tensors()]
    if learner.restores_parameters:
        tensors += [*learner.model.parameters(), *(optimizer.tensors() if optimizer is not None else ())]
    before, held = Snapshot(tensors), extras.items()
    remembered = optimizer.remembered() if optimizer is not None else set()
    try:
        yield
    except BaseException:
        for name, value in held:
            setattr(learner, name, value)
        before.restore()
        if optimizer is not None and learner.restores_parameters:
            optimizer.drop_all_but(remembered)
        raise


@contextmanager
def memory_transaction(memory: Memory | None, x: Tensor, y: Tensor) -> Iterator[None]:
    """Have memory where the model is, laid out for the first batch; undo what is written should the step fail."""
    if memory is None:
        yield
    elif memory.ready:
        memory.to(x)
        with memory.transaction():
            yield
    else:
        try:
            memory.lay_out(x, y)
            yield
        except BaseException:
            memory.clear()
            raise
