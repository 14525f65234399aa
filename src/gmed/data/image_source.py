from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError

Part = Literal["train", "test"]
Item = TypeVar("Item")


class ImageSource(ABC):
    """Images of classes in some layout in a folder, to be decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Every file that would be read."""

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """How many images of each class are for training and for testing, by the sorted names of the classes."""

    @abstractmethod
    def blocks(self, size: int) -> Iterator[tuple[str, Part, NDArray[np.uint8]]]:
        """All images of a class for training or testing, in order, as (n, 3, size, size); then the next."""


def last_sixth(where: Path, items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """Items for training and the last sixth of them for testing: 500 and 100 of 600.

    >>> last_sixth(Path("n01532829"), range(12))
    (range(0, 10), range(10, 12))
    """
    if len(items) < 6:
        raise DataError(
            f"{where}: {len(items)} images. Put at least 6 there: the last sixth of a class is its test set."
        )
    held = len(items) - len(items) // 6
    return items[:held], items[held:]
