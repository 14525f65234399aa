"""Streams whose tasks rotate images."""

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
"""In pixels: a point this close to the edge of an image, as after a half turn, lies inside it."""


def rotated(data: Dataset, seed: int, *, tasks: int = 20, per_task: int = 1000, test_per_task: int = 1000) -> Stream:
    """Create a domain-incremental stream: the images of each task are rotated by one angle.

    The angle of task t is uniform in [180 t / tasks, 180 (t + 1) / tasks) degrees. Every task has a new random sample
    of training and of test images.

    References
    ----------
    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """
    sampler, angles = make_rng(seed, "data"), make_rng(seed, "rotation")
    x, y, tests = [], [], []
    for task in range(tasks):
        angle = float(angles.uniform(task, task + 1)) * 180 / tasks
        train = sampler.choice(len(data.y_train), per_task, replace=False)
        test = sampler.choice(len(data.y_test), test_per_task, replace=False)
        x.append(rotate(data.x_train[train], angle))
        y.append(torch.from_numpy(data.y_train[train]))
        tests.append(Examples(rotate(data.x_test[test], angle), torch.from_numpy(data.y_test[test])))
    return Stream(torch.cat(x), torch.cat(y), tuple(tests), cumulative_lengths([per_task] * tasks), data.num_classes)


def rotate(images: NDArray[np.uint8], angle: float) -> Tensor:
    """Rotate images counter-clockwise by cubic splines, with zeros outside; overshoot is clipped to [0, 1].

    The result is that of :func:`scipy.ndimage.rotate`, computed for all images at once: each pixel of a rotated image
    is the same linear combination of spline coefficients in every image.
    """
    height, width = images.shape[2:]
    planes = images.reshape(-1, height, width).astype(np.float32) / 255
    coefficients = scipy.ndimage.spline_filter1d(scipy.ndimage.spline_filter1d(planes, axis=1), axis=2)
    rotated_planes = _rotation_matrix(height, width, angle) @ coefficients.reshape(len(planes), -1).T
    return torch.from_numpy(rotated_planes.T.astype(np.float32).reshape(images.shape)).clamp_(0, 1)


def _rotation_matrix(height: int, width: int, angle: float) -> scipy.sparse.csr_array:
    """Return the weights of the spline coefficients, with a row for every pixel of the rotated image."""
    size = height * width
    theta = np.deg2rad(angle)
    row, column = np.divmod(np.arange(size), width)
    y, x = row - (height - 1) / 2, column - (width - 1) / 2
    y_in, x_in = np.cos(theta) * y + np.sin(theta) * x, np.cos(theta) * x - np.sin(theta) * y
    row_in, column_in = y_in + (height - 1) / 2, x_in + (width - 1) / 2
    inside = (abs(y_in) < height / 2 - 0.5 + ROUNDING) & (abs(x_in) < width / 2 - 0.5 + ROUNDING)
    columns, weights = [], []
    for i, row_weight in _cubic(row_in, height):
        for j, column_weight in _cubic(column_in, width):
            columns.append(i * width + j)
            weights.append(row_weight * column_weight * inside)
    rows = np.tile(np.arange(size), len(columns))
    return scipy.sparse.csr_array((np.concatenate(weights), (rows, np.concatenate(columns))), shape=(size, size))


def _cubic(position: NDArray[np.float64], length: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the indices (mirrored at the ends) and weights of the four coefficients of a cubic B-spline."""
    first = np.floor(position).astype(int)
    t = position - first
    weights = (1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, 3 * (1 - t) ** 3 - 6 * (1 - t) ** 2 + 4, t**3
    for shift, weight in zip((-1, 0, 1, 2), weights, strict=True):
        index = abs(first + shift)
        yield np.clip(np.minimum(index, 2 * (length - 1) - index), 0, None), weight / 6
