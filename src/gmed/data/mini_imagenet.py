"""Reader of mini-ImageNet, from folders of images or the usual pickled caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset, DataSource, Progress, no_progress
from gmed.data.image_cache import compare, decode, fingerprint, open_decoded
from gmed.data.images import ImageFolders, ImageSource, Item, Part, hold_out_last_sixth, holds_images
from gmed.data.paths import cache_dir, exclusive, find_folder, remove_cached, remove_stale_dirs
from gmed.data.safe_pickle import array_of, read_pickle
from gmed.errors import DataError

HOW_TO_GET = (
    "It cannot be downloaded automatically (request it from https://image-net.org). Put its 84 x 84 pixel images in "
    "DIR/train/<class>/ and DIR/val/<class>/, or its mini-imagenet-cache-*.pkl in DIR; then pass --data-dir DIR "
    "or set GMED_DATA=DIR"
)


class MiniImageNet(DataSource):
    """A data set in a layout of mini-ImageNet, with ``classes`` classes of ``size`` x ``size`` pixel images."""

    name = "mini-imagenet"
    images = "60,000 of 84 x 84, 100 classes"
    disk = "1.3 GB decoded"

    def __init__(self, size: int = 84, classes: int = 100) -> None:
        self.size, self.classes = size, classes

    def find(self, directory: Path | None = None) -> Path:
        """Return the folder with the images or their pickled caches."""

        def contains(folder: Path) -> bool:
            return holds_images(folder) or bool(PickledImages(folder).files)

        return find_folder(self.name, self.name, directory, contains, HOW_TO_GET)

    def load(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        """Open the decoded images, after decoding them if necessary."""
        source, target = self._locate(directory)
        self._decode_once(source, target, progress)
        return open_decoded(self.name, target, self.size)

    def verify(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        """Load it after decoding every image and comparing it with the cache."""
        source, target = self._locate(directory)
        decoded_now = self._decode_once(source, target, progress)
        data = open_decoded(self.name, target, self.size)
        if not decoded_now:
            compare(source, self.size, data, progress)
        return data

    def fetch(self, progress: Progress = no_progress) -> Path:
        """Explain that it cannot be downloaded."""
        raise DataError(f"{self.name}: {HOW_TO_GET[0].lower()}{HOW_TO_GET[1:]}.")

    def remove(self) -> list[Path]:
        """Remove the decoded copies from the cache, not the original images; return the removed paths."""
        return remove_cached(decoded_dir())

    def _locate(self, directory: Path | None) -> tuple[ImageSource, Path]:
        """Return the source of the images and the folder of their decoded copy, which may not exist yet."""
        folder = self.find(directory)
        pickled = PickledImages(folder)
        source = pickled if pickled.files else ImageFolders(folder)
        return source, decoded_dir() / fingerprint(source, self.size)

    def _decode_once(self, source: ImageSource, target: Path, progress: Progress) -> bool:
        """Decode into ``target`` unless it exists; return whether the images were decoded now."""
        if target.exists():
            return False
        with exclusive(decoded_dir()):
            if target.exists():
                return False
            remove_stale_dirs(decoded_dir())
            if len(source.counts) != self.classes:
                raise DataError(
                    f"{source.folder}: {len(source.counts)} classes, not {self.classes}. "
                    "Is a part of the data set missing?"
                )
            decode(source, self.size, target, progress)
        return True


MINI_IMAGENET = MiniImageNet()


def decoded_dir() -> Path:
    """Return the folder of decoded images in the cache."""
    return cache_dir() / f"{MiniImageNet.name}-decoded"


def load_mini_imagenet(directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
    """Load mini-ImageNet: 50,000 + 10,000 color photographs of 84 x 84 pixels in 100 classes.

    The first call decodes the images into arrays in the cache; later calls only map these into memory. Labels follow
    the sorted names of the classes.

    Parameters
    ----------
    directory
        A folder with the images in one of the usual layouts: ``train/<class>/`` and ``val/<class>/``, one folder per
        class, or the pickled ``mini-imagenet-cache-*.pkl``. By default ``$GMED_DATA``, or ``mini-imagenet`` in it.
    progress
        Called with the number of decoded images and their total.

    References
    ----------
    Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra, "Matching networks for one shot learning", NeurIPS 2016.
    """
    return MINI_IMAGENET.load(directory, progress)


NAMES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "val", "test"))


class PickledImages(ImageSource):
    """The usual pickled caches; the test set of each class is its last sixth, in the order of the files.

    Every file is read twice, one file at a time: first for the classes, which are sorted across all files, then for the
    images.
    """

    @property
    def files(self) -> Sequence[Path]:
        """Every file that is read."""
        return [self.folder / name for name in NAMES if (self.folder / name).is_file()]

    @cached_property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Numbers of training and test images by class, in sorted order of the class names."""
        counts: dict[str, tuple[int, int]] = {}
        for path in self.files:
            for name, indices in read_classes(path)[1].items():
                if name in counts:
                    raise DataError(f"{path}: class {name} is also in another of the files. Use the original files.")
                train, test = hold_out_last_sixth(path / name, indices)
                counts[name] = len(train), len(test)
        return dict(sorted(counts.items()))

    def blocks(self, size: int) -> Iterator[tuple[str, Part, NDArray[np.uint8]]]:
        """Yield the training images of a class as (n, 3, size, size), then its test images; then the next class."""
        for path in self.files:
            images, classes = read_classes(path)
            if images.shape[1:] != (size, size, 3):
                raise DataError(
                    f"{path}: images of shape {images.shape[1:]}, not {(size, size, 3)}. Use the original files."
                )
            for name, indices in classes.items():
                train, test = hold_out_last_sixth(path / name, indices)
                yield name, "train", images[train].transpose(0, 3, 1, 2)
                yield name, "test", images[test].transpose(0, 3, 1, 2)


def read_classes(path: Path) -> tuple[NDArray[np.uint8], Mapping[str, list[int]]]:
    """Read the images of a pickled cache as (n, height, width, 3), and the indices of each class."""

    def invalid(problem: str) -> DataError:
        return DataError(f"{path}: {problem}. Replace the file with the original.")

    content = read_pickle(path)
    try:
        images, classes = _parse_content(content)
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise invalid("not a dictionary of image_data (an array) and class_dict (indices of each class)") from None
    if images.dtype != np.uint8 or images.ndim != 4:
        raise invalid(f"its images are {images.dtype} of shape {images.shape}, not uint8 (n, height, width, 3)")
    for name, indices in classes.items():
        invalid_type = indices.ndim != 1 or indices.dtype.kind not in "iu"
        if invalid_type or np.any((indices < 0) | (indices >= len(images))):
            raise invalid(f"class {name} has image indices out of range")
    all_indices = np.concatenate([np.empty(0, np.int64), *classes.values()])
    if len(np.unique(all_indices)) < len(all_indices):
        raise invalid("an image is listed twice")
    return images, {name: indices.tolist() for name, indices in classes.items()}


def _parse_content(content: Any) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    if "class_dict" in content:
        classes = {_require_type(name, str): array_of(indices) for name, indices in content["class_dict"].items()}
        return array_of(content["image_data"]), classes
    labels, label_of = array_of(content["labels"]), content["catname2label"]
    if labels.ndim != 1:
        raise TypeError
    order = np.argsort(labels, kind="stable")  # sorted once for all classes
    names = [_require_type(name, str) for name in label_of]
    class_labels = np.array([_require_type(label, int) for label in label_of.values()], np.int64)
    starts, ends = (np.searchsorted(labels[order], class_labels, side) for side in ("left", "right"))
    classes = {name: order[start:end] for name, start, end in zip(names, starts, ends, strict=True)}
    return array_of(content["data"]), classes


def _require_type(value: Item, kind: type) -> Item:
    if not isinstance(value, kind):
        raise TypeError
    return value
