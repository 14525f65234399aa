from __future__ import annotations

import numpy as np

from gmed.data import Dataset
from gmed.data.own import OwnDataset
from gmed.randomness import generator
from gmed.streams.stream import Stream, task_by_task


def tasked(data: Dataset, seed: int) -> Stream:
    """One task after another, as the data say which example belongs to which.

    Within a task examples keep their order where it means something; otherwise every seed has its own.
    """
    assert isinstance(data, OwnDataset)
    order, tasks = generator(seed, "order"), range(data.tasks)
    seen = [np.flatnonzero(data.task_train == task) for task in tasks]
    held = [np.flatnonzero(data.task_test == task) for task in tasks]
    return task_by_task(data, seen if data.in_order else [order.permutation(places) for places in seen], held)
