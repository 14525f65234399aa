from __future__ import annotations

import numpy as np
import torch

from gmed.data import Dataset
from gmed.data.own import OwnDataset
from gmed.randomness import generator
from gmed.streams.stream import Examples, Stream, ends


def tasked(data: Dataset, seed: int) -> Stream:
    """One task after another, as the data say which example belongs to which.

    Within a task examples keep their order where it means something; otherwise every seed has its own.
    """
    assert isinstance(data, OwnDataset)
    order, seen, tests = generator(seed, "order"), [], []
    for task in range(data.tasks):
        places = np.flatnonzero(data.task_train == task)
        seen.append(places if data.in_order else order.permutation(places))
        held = np.flatnonzero(data.task_test == task)
        tests.append(Examples(torch.from_numpy(data.x_test[held]), torch.from_numpy(data.y_test[held])))
    chosen = np.concatenate(seen)
    return Stream(
        x=torch.from_numpy(data.x_train[chosen]),
        y=torch.from_numpy(data.y_train[chosen]),
        tests=tuple(tests),
        evaluate_after=ends([len(places) for places in seen]),
        num_classes=data.num_classes,
    )
