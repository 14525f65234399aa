from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.data import Dataset
from gmed.rng import make_rng
from gmed.streams.stream import Examples, Stream, cumulative_lengths

ROUNDING = 1e-9
"""Of a pixel: what lies so little outside an image, as after a half turn, lies on its edge."""


def rotated(data: Dataset, seed: int, *, tasks: int = 20, per_task: int = 1000, test_per_task: int = 1000) -> Stream:
    """Domain-incremental: the images of each task are turned by one angle.

    Task t's angle is uniform in its share of the half circle, [180 t / tasks, 180 (t + 1) / tasks) degrees.
    Every task has a fresh random choice of training and of test images.

    References
    ----------
    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """
    choice, angles = make_rng(seed, "data"), make_rng(seed, "rotation")
    x, y, tests = [], [], []
    for task in range(tasks):
        angle = float(angles.uniform(task, task + 1)) * 180 / tasks
        train = choice.choice(len(data.y_train), per_task, replace=False)
        test = choice.choice(len(data.y_test), test_per_task, replace=False)
        x.append(rotate(data.x_train[train], angle))
        y.append(torch.from_numpy(data.y_train[train]))
        tests.append(Examples(rotate(data.x_test[test], angle), torch.from_numpy(data.y_test[test])))
    return Stream(torch.cat(x), torch.cat(y), tuple(tests), cumulative_lengths([per_task] * tasks), data.num_classes)


def rotate(images: NDArray[np.uint8], angle: float) -> Tensor:
    """Turn images counter-clockwise by cubic splines, zero outside; overshoot is cut back to [0, 1].

    What :func:`scipy.ndimage.rotate` computes image by image: every pixel of a turned image is the same mixture of
    spline coefficients in all of them.
    """
    height, width = images.shape[2:]
    planes = images.reshape(-1, height, width).astype(np.float32) / 255
    coefficients = scipy.ndimage.spline_filter1d(scipy.ndimage.spline_filter1d(planes, axis=1), axis=2)
    turned = _rotation_matrix(height, width, angle) @ coefficients.reshape(len(planes), -1).T
    return torch.from_numpy(turned.T.astype(np.float32).reshape(images.shape)).clamp_(0, 1)


def _rotation_matrix(height: int, width: int, angle: float) -> scipy.sparse.csr_array:
    """Of which spline coefficients each pixel is made: a row for every pixel of the turned image."""
    size = height * width
    turn = np.deg2rad(angle)
    down, right = np.divmod(np.arange(size), width)
    down, right = down - (height - 1) / 2, right - (width - 1) / 2
    down_in, right_in = np.cos(turn) * down + np.sin(turn) * right, np.cos(turn) * right - np.sin(turn) * down
    row, column = down_in + (height - 1) / 2, right_in + (width - 1) / 2
    inside = (abs(down_in) < height / 2 - 0.5 + ROUNDING) & (abs(right_in) < width / 2 - 0.5 + ROUNDING)
    places, weights = [], []
    for i, of_row in _cubic(row, height):
        for j, of_column in _cubic(column, width):
            places.append(i * width + j)
            weights.append(of_row * of_column * inside)
    to_float = np.tile(np.arange(size), len(places))
    return scipy.sparse.csr_array((np.concatenate(weights), (to_float, np.concatenate(places))), shape=(size, size))


def _cubic(at: NDArray[np.float64], length: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """The four coefficients that a cubic B-spline at each place is made of, mirrored at the ends, and their weights."""
    first = np.floor(at).astype(int)
    t = at - first
    cubes = (1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, 3 * (1 - t) ** 3 - 6 * (1 - t) ** 2 + 4, t**3
    for shift, cube in zip((-1, 0, 1, 2), cubes, strict=True):
        index = abs(first + shift)
        yield np.clip(np.minimum(index, 2 * (length - 1) - index), 0, None), cube / 6
