"""Streams of one task after another: by class, or as the data say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gmed.data import Dataset
from gmed.data.custom import TaskDataset
from gmed.deprecated import old_names
from gmed.rng import make_rng
from gmed.streams.stream import Stream, concat_tasks

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


def split(data: Dataset, seed: int, *, tasks: int = 5, per_task: int | None = 1000) -> Stream:
    """Class-incremental: consecutive classes form a task (0 and 1, then 2 and 3, ...).

    Parameters
    ----------
    tasks
        How many tasks; the classes are divided evenly, in label order.
    per_task
        Training examples per task, chosen at random for every seed; ``None`` takes all.

    References
    ----------
    Goodfellow et al., "An empirical investigation of catastrophic forgetting in gradient-based neural
    networks", 2013. 1,000 examples per task as Aljundi et al., "Online continual learning with maximally
    interfered retrieval", NeurIPS 2019.
    """
    choice, order = make_rng(seed, "data"), make_rng(seed, "order")
    chosen, held = [], []
    for classes in np.array_split(np.arange(data.num_classes), tasks):
        candidates = np.flatnonzero(np.isin(data.y_train, classes))
        count = len(candidates) if per_task is None else min(per_task, len(candidates))
        chosen.append(order.permutation(choice.choice(candidates, count, replace=False)))
        held.append(np.flatnonzero(np.isin(data.y_test, classes)))
    return concat_tasks(data, chosen, held)


def by_task(data: Dataset, seed: int) -> Stream:
    """One task after another, as the data say which example belongs to which.

    Within a task examples keep their order where it means something; otherwise every seed has its own.
    """
    assert isinstance(data, TaskDataset)
    order, tasks = make_rng(seed, "order"), range(data.tasks)
    seen = [np.flatnonzero(data.task_train == task) for task in tasks]
    held = [np.flatnonzero(data.task_test == task) for task in tasks]
    return concat_tasks(data, seen if data.in_order else [order.permutation(places) for places in seen], held)
