from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from gmed.errors import InputError, UsageError, whole_number
from gmed.learners.learner import Learner


class TaskAware(Learner):
    """A learner that must be told which task a batch is from. Predictions are made without."""

    task_aware: ClassVar[bool] = True

    def observe(self, x: Any, y: Any, task: int) -> None:  # type: ignore[override]
        """Learn from one batch of the task with this number (0, 1, ...)."""
        try:
            number = whole_number("task", task, least=0)
        except UsageError as error:
            raise InputError(str(error)) from None
        self._observe(x, y, number)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        """Learn from one checked batch of a task."""
