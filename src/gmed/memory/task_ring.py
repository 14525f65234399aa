from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import UsageError, check_int
from gmed.memory.base import Memory


class TaskRing(Memory):
    """An equal slots_per_task of the slots for every task, in which its latest examples are kept.

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
    >>> TaskRing(500, tasks=5).slots_per_task
    100

    References
    ----------
    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """

    def __init__(self, capacity: int, *, tasks: int) -> None:
        super().__init__(capacity)
        self.tasks = check_int("tasks", tasks)
        self.slots_per_task = capacity // tasks
        if self.slots_per_task == 0:
            raise UsageError(f"a memory of {capacity} has no slot for each of {tasks} tasks")
        self.task = 0

    def set_task(self, task: int) -> None:
        """Examples inserted from now on are of this task."""
        if not 0 <= task < self.tasks:
            raise UsageError(f"task {task} is not one of the {self.tasks} tasks this memory has room for")
        self.task = task

    def task_slots(self, task: int) -> NDArray[np.int64]:
        """The slots that hold an example of this task."""
        slots_per_task = np.arange(task * self.slots_per_task, (task + 1) * self.slots_per_task)
        return slots_per_task[self._occupied_mask()[slots_per_task]]

    def occupied(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._occupied_mask())

    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        first = self.task * self.slots_per_task
        held = self.stream_index[first : first + self.slots_per_task].cpu().numpy()
        behind_newest = int(held.argmax()) + 1 if held.max() >= 0 else 0
        return first + (behind_newest + np.arange(len(y))) % self.slots_per_task

    def _occupied_mask(self) -> NDArray[np.bool_]:
        if not self.is_allocated:
            return np.zeros(self.capacity, dtype=bool)
        mask: NDArray[np.bool_] = (self.stream_index >= 0).cpu().numpy()
        return mask
