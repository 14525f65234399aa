"""Readers of images in folders, one folder per class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from gmed.data.image import read_image
from gmed.errors import DataError

Part = Literal["train", "test"]
Item = TypeVar("Item")


class ImageSource(ABC):
    """A folder of images in some layout, to be decoded class by class."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Every file that is read."""

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Numbers of training and test images by class, in sorted order of the class names."""

    @abstractmethod
    def blocks(self, size: int) -> Iterator[tuple[str, Part, NDArray[np.uint8]]]:
        """Yield the training images of a class as (n, 3, size, size), then its test images; then the next class."""


def hold_out_last_sixth(source: Path, items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """Split items into training items and, as test items, the last sixth: 500 and 100 of 600.

    >>> hold_out_last_sixth(Path("n01532829"), range(12))
    (range(0, 10), range(10, 12))
    """
    if len(items) < 6:
        raise DataError(
            f"{source}: {len(items)} images; at least 6 are needed, as the last sixth of a class is its test set."
        )
    count = len(items) - len(items) // 6
    return items[:count], items[count:]


IMAGES = {".jpg", ".jpeg", ".png"}
IGNORED = {".csv", ".txt"}


class ImageFolders(ImageSource):
    """Images in folders named by their class.

    If ``train/<class>/`` and ``val/<class>/`` have the same classes, they are the training and the test set. If
    ``train``, ``val`` and ``test`` have different classes, or the class folders are in the folder itself, the test set
    of each class is its last sixth by file name.
    """

    @cached_property
    def classes(self) -> Mapping[str, tuple[Sequence[Path], Sequence[Path]]]:
        """Training and test files by class."""
        names = [name for name in ("train", "val", "test") if (self.folder / name).is_dir()]
        parts = [class_folders(self.folder / name) for name in names] or [class_folders(self.folder)]
        pooled = {name: files for part in parts for name, files in part.items()}
        if len(pooled) == sum(map(len, parts)):
            return {name: hold_out_last_sixth(files[0].parent, files) for name, files in sorted(pooled.items())}
        if len(parts) == 2 and parts[0].keys() == parts[1].keys():
            return {name: (parts[0][name], parts[1][name]) for name in sorted(pooled)}
        raise DataError(
            f"{self.folder}: {' and '.join(names)} share classes. Use either two folders with the same classes, for "
            "training and for testing, or folders with disjoint classes.",
        )

    @property
    def files(self) -> Sequence[Path]:
        """Every file that is read."""
        return [file for parts in self.classes.values() for part in parts for file in part]

    @property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Numbers of training and test images by class, in sorted order of the class names."""
        return {name: (len(train), len(test)) for name, (train, test) in self.classes.items()}

    def blocks(self, size: int) -> Iterator[tuple[str, Part, NDArray[np.uint8]]]:
        """Yield the training images of a class as (n, 3, size, size), then its test images; then the next class."""
        for name, (train, test) in self.classes.items():
            yield name, "train", np.stack([read_image(file, size) for file in train])
            yield name, "test", np.stack([read_image(file, size) for file in test])


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Return the images in each subfolder, sorted by file name."""
    images = {}
    for inner in _entries(folder):
        if inner.name.startswith(".") or not inner.is_dir():
            continue
        images[inner.name] = [file for file in _entries(inner) if _is_image(file)]
        if not images[inner.name]:
            raise DataError(f"{inner}: the folder has no images. Add the images of its class, or remove it.")
    if not images:
        raise DataError(f"{folder}: the folder has no subfolders of images. Create one for each class.")
    return images


def holds_images(folder: Path) -> bool:
    """Return whether the folder has a ``train`` folder or class folders of images, valid or not."""
    if not folder.is_dir():
        return False
    inner = [entry for entry in folder.iterdir() if entry.is_dir()]
    return any(f.name == "train" for f in inner) or any(i.suffix.lower() in IMAGES for f in inner for i in f.iterdir())


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}).") from None


def _is_image(file: Path) -> bool:
    suffix = file.suffix.lower()
    if file.name.startswith(".") or suffix in IGNORED:
        return False
    if suffix not in IMAGES:
        raise DataError(f"{file}: not a .jpg, .jpeg or .png file. Move it out of the class folder.")
    return True
