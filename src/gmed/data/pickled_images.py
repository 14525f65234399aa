from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.data.image_source import ImageSource, Item, Part, last_sixth
from gmed.data.plain_pickle import array_of, read_pickle
from gmed.errors import DataError

NAMES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test"))


class PickledImages(ImageSource):
    """The usual pickled caches; of each class, in the order they list it, the last sixth is the test set.

    They are read one at a time, twice: first for the classes, which are sorted across all of them, then for the images.
    """

    @property
    def files(self) -> Sequence[Path]:
        return [self.folder / name for name in NAMES if (self.folder / name).is_file()]

    @cached_property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self.files:
            for name, indices in read_classes(path)[1].items():
                if name in found:
                    raise DataError(f"{path}: class {name} is in another of the files too. Get the originals.")
                train, test = last_sixth(path / name, indices)
                found[name] = len(train), len(test)
        return dict(sorted(found.items()))

    def blocks(self, size: int) -> Iterator[tuple[str, Part, NDArray[np.uint8]]]:
        for path in self.files:
            images, classes = read_classes(path)
            if images.shape[1:] != (size, size, 3):
                raise DataError(
                    f"{path}: images of shape {images.shape[1:]}, not {(size, size, 3)}. Get the originals."
                )
            for name, indices in classes.items():
                train, test = last_sixth(path / name, indices)
                yield name, "train", images[train].transpose(0, 3, 1, 2)
                yield name, "test", images[test].transpose(0, 3, 1, 2)


def read_classes(path: Path) -> tuple[NDArray[np.uint8], Mapping[str, list[int]]]:
    """The images in a pickled cache as (n, height, width, 3), and which of them are of each class."""

    def refuse(what: str) -> DataError:
        return DataError(f"{path}: {what}. Replace the file with the original.")

    content = read_pickle(path)
    try:
        images, classes = _unfold(content)
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise refuse("not a dictionary of image_data (an array) and class_dict (indices of each class)") from None
    if images.dtype != np.uint8 or images.ndim != 4:
        raise refuse(f"its images are {images.dtype} of shape {images.shape}, not uint8 (n, height, width, 3)")
    for name, indices in classes.items():
        wrong_kind = indices.ndim != 1 or indices.dtype.kind not in "iu"
        if wrong_kind or np.any((indices < 0) | (indices >= len(images))):
            raise refuse(f"class {name} lists images it does not hold")
    listed = np.concatenate([np.empty(0, np.int64), *classes.values()])
    if len(np.unique(listed)) < len(listed):
        raise refuse("an image is listed twice")
    return images, {name: indices.tolist() for name, indices in classes.items()}


def _unfold(content: Any) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    if "class_dict" in content:
        classes = {_checked(name, str): array_of(indices) for name, indices in content["class_dict"].items()}
        return array_of(content["image_data"]), classes
    labels, numbers = array_of(content["labels"]), content["catname2label"]
    if labels.ndim != 1:
        raise TypeError
    order = np.argsort(labels, kind="stable")  # once, however many classes there are
    names = [_checked(name, str) for name in numbers]
    wanted = np.array([_checked(label, int) for label in numbers.values()], np.int64)
    begins, ends = (np.searchsorted(labels[order], wanted, side) for side in ("left", "right"))
    classes = {name: order[begin:end] for name, begin, end in zip(names, begins, ends, strict=True)}
    return array_of(content["data"]), classes


def _checked(value: Item, kind: type) -> Item:
    if not isinstance(value, kind):
        raise TypeError
    return value
