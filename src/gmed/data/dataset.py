"""The data set in memory, and the type of progress callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Examples and labels of a training set and a test set.

    Attributes
    ----------
    x_train, x_test
        uint8 pixels of shape (n, channels, height, width), or floats of any shape.
    y_train, y_test
        Integer labels in 0 .. num_classes - 1.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    num_classes: int


Progress = Callable[[int, int | None], None]
"""A callback that gets the amount done and, if known, the total."""


def no_progress(done: int, total: int | None) -> None:
    """Ignore the progress."""
