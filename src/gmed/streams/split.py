from __future__ import annotations

import numpy as np
import torch

from gmed.data import Dataset
from gmed.randomness import generator
from gmed.streams.stream import Examples, Stream, ends


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
    choice, order = generator(seed, "data"), generator(seed, "order")
    chosen, tests = [], []
    for classes in np.array_split(np.arange(data.num_classes), tasks):
        candidates = np.flatnonzero(np.isin(data.y_train, classes))
        count = len(candidates) if per_task is None else min(per_task, len(candidates))
        chosen.append(order.permutation(choice.choice(candidates, count, replace=False)))
        held = np.flatnonzero(np.isin(data.y_test, classes))
        tests.append(Examples(torch.from_numpy(data.x_test[held]), torch.from_numpy(data.y_test[held])))
    seen = np.concatenate(chosen)
    return Stream(
        x=torch.from_numpy(data.x_train[seen]),
        y=torch.from_numpy(data.y_train[seen]),
        tests=tuple(tests),
        evaluate_after=ends([len(c) for c in chosen]),
        num_classes=data.num_classes,
    )
