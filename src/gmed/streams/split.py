"""Streams of one task after another, divided by class or as the data set specifies."""

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
    """Create a class-incremental stream: consecutive classes form a task (0 and 1, then 2 and 3, ...).

    Parameters
    ----------
    tasks
        Number of tasks; the classes are divided evenly, in label order.
    per_task
        Number of training examples per task, sampled for every seed; ``None`` takes all.

    References
    ----------
    Goodfellow et al., "An empirical investigation of catastrophic forgetting in gradient-based neural
    networks", 2013. 1,000 examples per task as in Aljundi et al., "Online continual learning with maximally
    interfered retrieval", NeurIPS 2019.
    """
    sampler, order = make_rng(seed, "data"), make_rng(seed, "order")
    train, test = [], []
    for classes in np.array_split(np.arange(data.num_classes), tasks):
        candidates = np.flatnonzero(np.isin(data.y_train, classes))
        count = len(candidates) if per_task is None else min(per_task, len(candidates))
        train.append(order.permutation(sampler.choice(candidates, count, replace=False)))
        test.append(np.flatnonzero(np.isin(data.y_test, classes)))
    return concat_tasks(data, train, test)


def by_task(data: Dataset, seed: int) -> Stream:
    """Create a stream of the tasks of a data set, one after another.

    Within a task examples keep their order if it is meaningful; otherwise they are shuffled for every seed.
    """
    assert isinstance(data, TaskDataset)
    order, tasks = make_rng(seed, "order"), range(data.tasks)
    train = [np.flatnonzero(data.task_train == task) for task in tasks]
    test = [np.flatnonzero(data.task_test == task) for task in tasks]
    return concat_tasks(data, train if data.in_order else [order.permutation(indices) for indices in train], test)
