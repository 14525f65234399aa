"""Streams whose tasks permute the pixels of images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gmed.data import Dataset
from gmed.rng import make_rng
from gmed.streams.stream import Examples, Stream, cumulative_lengths


def permuted(data: Dataset, seed: int, *, tasks: int = 10, per_task: int = 1000) -> Stream:
    """Create a domain-incremental stream: each task has its own fixed permutation of the pixels, the first has none.

    All tasks share one random sample of ``per_task`` training images, in a new order for each task; every task is
    tested on the full test set.

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
        pixels = torch.from_numpy(np.arange(size) if task == 0 else permutations.permutation(size))
        seen = order.permutation(chosen)
        x.append(permute_pixels(torch.from_numpy(data.x_train[seen]), pixels))
        y.append(torch.from_numpy(data.y_train[seen]))
        tests.append(Examples(permute_pixels(x_test, pixels), y_test))
    return Stream(torch.cat(x), torch.cat(y), tuple(tests), cumulative_lengths([per_task] * tasks), data.num_classes)


def permute_pixels(images: Tensor, pixels: Tensor) -> Tensor:
    """Return each image with its i-th pixel taken from pixel ``pixels[i]``."""
    return images.flatten(1)[:, pixels].reshape(images.shape)
