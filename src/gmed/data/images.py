"""Readers of JPEG and PNG files as 8-bit RGB, and of folders of them; what cannot be read faithfully is an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError
from gmed.io.files import open_regular, reading

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG")

CONVERTED = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
"""Modes that Pillow converts to RGB faithfully. It would clip 16-bit gray at 255."""


def read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """Read a JPEG or PNG file as (3, size, size); refuse another size."""
    with reading(path), open_regular(path) as file:
        return decode_image(file, path, size)


def decode_image(file: BinaryIO, path: Path, size: int) -> NDArray[np.uint8]:
    """Decode the image in an open file as (3, size, size); refuse another size."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            f"{path}: Pillow is needed to read images. Install it with: pip install 'gmed[images]'"
        ) from None
    try:
        with Image.open(file, formats=FORMATS) as image:
            actual = image.size
            pixels = _to_rgb(image, path) if actual == (size, size) else None
    except DataError:
        raise
    except Exception as error:  # Pillow raises different errors for different formats and damage
        raise DataError(f"{path}: not a valid image ({error}). Replace it with the original.") from None
    if pixels is None:
        raise DataError(
            f"{path}: {actual[0]} x {actual[1]} pixels, not {size} x {size}. Resize it, for example with Pillow: "
            f'Image.open(p).convert("RGB").resize(({size}, {size})).save(p)',
        )
    return pixels.transpose(2, 0, 1)


def image_width(file: BinaryIO) -> int:
    """Return the width in the header of an open image file, or 1 if it is unreadable."""
    try:
        from PIL import Image

        with Image.open(file, formats=FORMATS) as image:
            return int(image.width)
    except Exception:  # decode_image reports the problem, or that Pillow is missing
        return 1


def is_16_bit_gray(header: bytes) -> bool:
    """Return whether the first bytes of a file are those of a 16-bit grayscale PNG."""
    return header[:8] == b"\x89PNG\r\n\x1a\n" and header[12:16] == b"IHDR" and header[24:26] == b"\x10\x00"


def _to_rgb(image: Image, path: Path) -> NDArray[np.uint8]:
    """Return the pixels as (height, width, 3)."""
    if image.format == "PNG" and getattr(image, "n_frames", 1) > 1:
        raise DataError(f"{path}: an animation. Save a single frame of it.")
    if image.mode.startswith("I"):
        return _scale_16_bit(image, path)
    if image.mode not in CONVERTED:
        raise DataError(f"{path}: the image mode {image.mode!r} is not supported. Save it as 8-bit RGB or grayscale.")
    if "A" in image.getbands() or "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA"))
        _require_opaque(pixels[:, :, 3] == 255, path)
        return pixels[:, :, :3]
    return np.asarray(image.convert("RGB"))


def _scale_16_bit(image: Image, path: Path) -> NDArray[np.uint8]:
    """Scale 16-bit gray to 8 bits: 0 stays black and 65535 becomes white."""
    values = np.asarray(image).astype(np.int64)
    if (transparent_value := image.info.get("transparency")) is not None:
        _require_opaque(values != transparent_value, path)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"{path}: values outside the 16-bit range. Save it as 8-bit RGB or grayscale.")
    return np.repeat(((values + 128) // 257).astype(np.uint8)[:, :, None], 3, axis=2)


def _require_opaque(opaque: NDArray[np.bool_], path: Path) -> None:
    if not opaque.all():
        raise DataError(
            f"{path}: the image has transparent pixels, and their background is unknown. Save it without transparency."
        )


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
            f"{source}: {len(items)} images; at least 6 are needed: the last sixth of each class is its test set."
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
    with reading(folder):
        return sorted(folder.iterdir(), key=lambda entry: entry.name)


def _is_image(file: Path) -> bool:
    suffix = file.suffix.lower()
    if file.name.startswith(".") or suffix in IGNORED:
        return False
    if suffix not in IMAGES:
        raise DataError(f"{file}: not a .jpg, .jpeg or .png file. Move it out of the class folder.")
    return True
