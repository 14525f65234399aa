from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import UsageError, check_int
from gmed.memory.base import Memory


class TaskRing(Memory):
    """An equal share of the slots for every task, in which its latest examples are kept.

    The next example goes behind the newest that is left; where the newest were removed on request, into their slots.

    For task-aware learners, which say whose examples come next (:meth:`begin`).

    Parameters
    ----------
    capacity
        How many examples are stored in all.
    tasks
        How many tasks there will be.

    Examples
    --------
    >>> TaskRing(500, tasks=5).share
    100

    References
    ----------
    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """

    def __init__(self, capacity: int, *, tasks: int) -> None:
        super().__init__(capacity)
        self.tasks = check_int("tasks", tasks)
        self.share = capacity // tasks
        if self.share == 0:
            raise UsageError(f"a memory of {capacity} has no slot for each of {tasks} tasks")
        self.task = 0

    def begin(self, task: int) -> None:
        """Examples inserted from now on are of this task."""
        if not 0 <= task < self.tasks:
            raise UsageError(f"task {task} is not one of the {self.tasks} tasks this memory has room for")
        self.task = task

    def of_task(self, task: int) -> NDArray[np.int64]:
        """The slots that hold an example of this task."""
        share = np.arange(task * self.share, (task + 1) * self.share)
        return share[self._taken()[share]]

    def filled(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._taken())

    def admit(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        first = self.task * self.share
        held = self.origin[first : first + self.share].cpu().numpy()
        behind_newest = int(held.argmax()) + 1 if held.max() >= 0 else 0
        return first + (behind_newest + np.arange(len(y))) % self.share

    def _taken(self) -> NDArray[np.bool_]:
        if not self.ready:
            return np.zeros(self.capacity, dtype=bool)
        taken: NDArray[np.bool_] = (self.origin >= 0).cpu().numpy()
        return taken
