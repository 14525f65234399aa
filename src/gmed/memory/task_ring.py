"""A memory with an equal number of slots for every task."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import UsageError, check_int
from gmed.memory.base import Memory


class TaskRing(Memory):
    """An equal number of slots for every task, a ring buffer of its latest examples.

    The next example is written to the slot after the newest one; if the newest were removed on request, to their slots.

    For task-aware learners, which set the task of the next examples (:meth:`set_task`).

    Parameters
    ----------
    capacity
        Maximum number of stored examples of all tasks.
    tasks
        Number of tasks in the stream.

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
            raise UsageError(f"a memory of {capacity} examples is too small for {tasks} tasks: each needs a slot")
        self.task = 0

    def set_task(self, task: int) -> None:
        """Set the task of the examples inserted from now on."""
        if not 0 <= task < self.tasks:
            raise UsageError(f"task {task} is not one of the {self.tasks} tasks of this memory, which start at 0")
        self.task = task

    def task_slots(self, task: int) -> NDArray[np.int64]:
        """Return the slots that hold an example of this task."""
        slots = np.arange(task * self.slots_per_task, (task + 1) * self.slots_per_task)
        return slots[self._occupied_mask()[slots]]

    def occupied(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._occupied_mask())

    def select_slots(self, y: Tensor, rng: np.random.Generator, **columns: Tensor) -> NDArray[np.int64]:
        first = self.task * self.slots_per_task
        stream_index = self.stream_index[first : first + self.slots_per_task].cpu().numpy()
        after_newest = int(stream_index.argmax()) + 1 if stream_index.max() >= 0 else 0
        return first + (after_newest + np.arange(len(y))) % self.slots_per_task

    def _occupied_mask(self) -> NDArray[np.bool_]:
        if not self.is_allocated:
            return np.zeros(self.capacity, dtype=bool)
        mask: NDArray[np.bool_] = (self.stream_index >= 0).cpu().numpy()
        return mask
