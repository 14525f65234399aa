from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gmed.data import Dataset
from gmed.rng import make_rng
from gmed.streams.stream import Examples, Stream, cumulative_lengths


def permuted(data: Dataset, seed: int, *, tasks: int = 10, per_task: int = 1000) -> Stream:
    """Domain-incremental: each task shuffles the pixels in a fixed way of its own; the first leaves them alone.

    One random choice of ``per_task`` training images is shared by all tasks, in a fresh order for each; every
    task is tested on the full test set.

    References
    ----------
    Goodfellow et al., "An empirical investigation of catastrophic forgetting in gradient-based neural
    networks", 2013.
    """
    order, permutations = make_rng(seed, "order"), make_rng(seed, "permutation")
    chosen = make_rng(seed, "data").choice(len(data.y_train), per_task, replace=False)
    size = int(np.prod(data.x_train.shape[1:]))
    x_test, y_test = torch.tensor(data.x_test), torch.tensor(data.y_test)
    x, y, tests = [], [], []
    for task in range(tasks):
        places = torch.from_numpy(np.arange(size) if task == 0 else permutations.permutation(size))
        seen = order.permutation(chosen)
        x.append(permute_pixels(torch.from_numpy(data.x_train[seen]), places))
        y.append(torch.from_numpy(data.y_train[seen]))
        tests.append(Examples(permute_pixels(x_test, places), y_test))
    return Stream(torch.cat(x), torch.cat(y), tuple(tests), cumulative_lengths([per_task] * tasks), data.num_classes)


def permute_pixels(images: Tensor, places: Tensor) -> Tensor:
    """Each image with its i-th pixel taken from ``places[i]``."""
    return images.flatten(1)[:, places].reshape(images.shape)
