from __future__ import annotations

from pathlib import Path

from gmed.data.dataset import Dataset
from gmed.data.decoded import compare, decode, fingerprint, open_decoded
from gmed.data.image_folders import ImageFolders, holds_images
from gmed.data.image_source import ImageSource
from gmed.data.pickled_images import PickledImages
from gmed.data.places import cache_folder, find_folder
from gmed.data.progress import Progress, unwatched
from gmed.data.writing import exclusive, remove_left_behind
from gmed.errors import DataError

NAME = "mini-imagenet"
SIZE, CLASSES = 84, 100

HOW_TO_GET = (
    "It cannot be downloaded from here (https://image-net.org gives it out). Put its images of 84 x 84 pixels in "
    "DIR/train/<class>/ and DIR/val/<class>/, or its mini-imagenet-cache-*.pkl in DIR; then pass --data-dir DIR "
    "or set GMED_DATA=DIR"
)


def load_mini_imagenet(directory: Path | None = None, progress: Progress = unwatched) -> Dataset:
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


def verify_mini_imagenet(directory: Path | None = None, progress: Progress = unwatched) -> Dataset:
    """mini-ImageNet after every image was decoded, again if it had been, and found to be the one in the cache."""
    return verify_images(directory, SIZE, CLASSES, progress)


def find_mini_imagenet(directory: Path | None = None) -> Path:
    """The folder with the images or with their pickled caches."""
    return find_folder(NAME, NAME, directory, lambda f: holds_images(f) or bool(PickledImages(f).files), HOW_TO_GET)


def decoded_folder() -> Path:
    """The folder in the cache with everything that was decoded."""
    return cache_folder() / f"{NAME}-decoded"


def load_images(directory: Path | None, size: int, classes: int, progress: Progress = unwatched) -> Dataset:
    """A data set in the layouts of mini-ImageNet, of images so large and so many classes."""
    source, target = _locate(directory, size)
    _decode_once(source, target, size, classes, progress)
    return open_decoded(NAME, target, size)


def verify_images(directory: Path | None, size: int, classes: int, progress: Progress = unwatched) -> Dataset:
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
    return source, decoded_folder() / fingerprint(source, size)


def _decode_once(source: ImageSource, target: Path, size: int, classes: int, progress: Progress) -> bool:
    """Decode into ``target`` unless that is there; whether it was done now."""
    if target.exists():
        return False
    with exclusive(decoded_folder()):
        if target.exists():
            return False
        remove_left_behind(decoded_folder())
        if len(source.counts) != classes:
            raise DataError(f"{source.folder}: {len(source.counts)} classes, not {classes}. Is a part of it missing?")
        decode(source, size, target, progress)
    return True
