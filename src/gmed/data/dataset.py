"""Data sets in memory, the interface of named data sets, and the type of progress callbacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


class DataSource(ABC):
    """A named data set: how to find, load, verify, fetch and remove it.

    Attributes
    ----------
    images, disk
        The number and size of its images, and the disk space it takes, as text.
    """

    name: str
    images: str
    disk: str

    @abstractmethod
    def find(self, directory: Path | None = None) -> Path:
        """Return its folder without reading it; if there is none, the error explains how to get the data set."""

    @abstractmethod
    def load(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        """Load it; if a full check takes long, only do quick checks."""

    def verify(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        """Load it after reading and checking every file."""
        return self.load(directory, progress)

    @abstractmethod
    def fetch(self, progress: Progress = no_progress) -> Path:
        """Download it into the cache; return its folder."""

    def remove(self) -> list[Path]:
        """Remove its files from the cache; return the removed paths."""
        return []
