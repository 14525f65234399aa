from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from gmed.data import Dataset
from gmed.randomness import generator
from gmed.streams.stream import Examples, Stream, ends


def rotated(data: Dataset, seed: int, *, tasks: int = 20, per_task: int = 1000, test_per_task: int = 1000) -> Stream:
    """Domain-incremental: the images of each task are turned by one angle.

    Task t's angle is uniform in its share of the half circle, [180 t / tasks, 180 (t + 1) / tasks) degrees.
    Every task has a fresh random choice of training and of test images.

    References
    ----------
    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """
    choice, angles = generator(seed, "data"), generator(seed, "rotation")
    x, y, tests = [], [], []
    for task in range(tasks):
        angle = float(angles.uniform(task, task + 1)) * 180 / tasks
        train = choice.choice(len(data.y_train), per_task, replace=False)
        test = choice.choice(len(data.y_test), test_per_task, replace=False)
        x.append(rotate(data.x_train[train], angle))
        y.append(torch.from_numpy(data.y_train[train]))
        tests.append(Examples(rotate(data.x_test[test], angle), torch.from_numpy(data.y_test[test])))
    return Stream(torch.cat(x), torch.cat(y), tuple(tests), ends([per_task] * tasks), data.num_classes)


def rotate(images: NDArray[np.uint8], angle: float) -> Tensor:
    """Turn images counter-clockwise by cubic splines, zero outside; overshoot is cut back to [0, 1]."""
    turned = ndimage.rotate(
        images.astype(np.float32) / 255, angle, axes=(3, 2), reshape=False, order=3, mode="constant"
    )
    return torch.from_numpy(turned).clamp_(0, 1)
