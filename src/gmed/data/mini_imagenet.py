"""Split mini-ImageNet, from folders of images or the usual pickled caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset, Progress, no_progress
from gmed.data.image_cache import compare, decode, fingerprint, open_decoded
from gmed.data.image_folders import ImageFolders, ImageSource, Item, Part, hold_out_last_sixth, holds_images
from gmed.data.paths import cache_dir, exclusive, find_folder, remove_stale_dirs
from gmed.data.safe_pickle import array_of, read_pickle
from gmed.errors import DataError

NAME = "mini-imagenet"
SIZE, CLASSES = 84, 100

HOW_TO_GET = (
    "It cannot be downloaded from here (https://image-net.org gives it out). Put its images of 84 x 84 pixels in "
    "DIR/train/<class>/ and DIR/val/<class>/, or its mini-imagenet-cache-*.pkl in DIR; then pass --data-dir DIR "
    "or set GMED_DATA=DIR"
)


def load_mini_imagenet(directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
    """mini-ImageNet: 50,000 + 10,000 colour photographs of 100 kinds of things, 84 x 84.

    Images are decoded the first time, into arrays in the cache that later calls only map into memory. Labels follow
    the sorted names of the classes.

    Parameters
    ----------
    directory
        A folder with the images in one of the usual layouts: ``train/<class>/`` and ``val/<class>/``, a folder for
        each class, or the pickled ``mini-imagenet-cache-*.pkl``. By default ``$GMED_DATA``, or ``mini-imagenet`` in it.
    progress
        Told how many images of how many are decoded.

    References
    ----------
    Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra, "Matching networks for one shot learning", NeurIPS 2016.
    """
    return load_images(directory, SIZE, CLASSES, progress)


def verify_mini_imagenet(directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
    """mini-ImageNet after every image was decoded, again if it had been, and found to be the one in the cache."""
    return verify_images(directory, SIZE, CLASSES, progress)


def find_mini_imagenet(directory: Path | None = None) -> Path:
    """The folder with the images or with their pickled caches."""
    return find_folder(NAME, NAME, directory, lambda f: holds_images(f) or bool(PickledImages(f).files), HOW_TO_GET)


def decoded_dir() -> Path:
    """The folder in the cache with everything that was decoded."""
    return cache_dir() / f"{NAME}-decoded"


def load_images(directory: Path | None, size: int, classes: int, progress: Progress = no_progress) -> Dataset:
    """A data set in the layouts of mini-ImageNet, of images so large and so many classes."""
    source, target = _locate(directory, size)
    _decode_once(source, target, size, classes, progress)
    return open_decoded(NAME, target, size)


def verify_images(directory: Path | None, size: int, classes: int, progress: Progress = no_progress) -> Dataset:
    """What :func:`load_images` gives, after every image was decoded now."""
    source, target = _locate(directory, size)
    new = _decode_once(source, target, size, classes, progress)
    data = open_decoded(NAME, target, size)
    if not new:
        compare(source, size, data, progress)
    return data


def _locate(directory: Path | None, size: int) -> tuple[ImageSource, Path]:
    """The images, and where they are or will be decoded."""
    folder = find_mini_imagenet(directory)
    pickled = PickledImages(folder)
    source = pickled if pickled.files else ImageFolders(folder)
    return source, decoded_dir() / fingerprint(source, size)


def _decode_once(source: ImageSource, target: Path, size: int, classes: int, progress: Progress) -> bool:
    """Decode into ``target`` unless that is there; whether it was done now."""
    if target.exists():
        return False
    with exclusive(decoded_dir()):
        if target.exists():
            return False
        remove_stale_dirs(decoded_dir())
        if len(source.counts) != classes:
            raise DataError(f"{source.folder}: {len(source.counts)} classes, not {classes}. Is a part of it missing?")
        decode(source, size, target, progress)
    return True


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
                train, test = hold_out_last_sixth(path / name, indices)
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
                train, test = hold_out_last_sixth(path / name, indices)
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
