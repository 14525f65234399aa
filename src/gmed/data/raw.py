"""Data of one's own as they are in their files."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.data.image_folders import class_folders, read_image
from gmed.data.table import read_table
from gmed.errors import DataError


@dataclass(frozen=True)
class Raw:
    """Examples as they were read.

    Attributes
    ----------
    x, y, x_test, y_test
        Inputs (uint8 images, or floats) and the numbers of their classes; the test set may be empty.
    classes
        What the classes are called.
    digest
        Of the bytes that were read.
    columns, groups
        The names of a table's features, and what it says in the column that tasks are made by.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]
    classes: Sequence[str]
    digest: str
    columns: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None


def read_rows(path: Path, label: str | None, column: str | None, drop: Sequence[str] = ()) -> Raw:
    """The rows of a table, with the column that tasks are made by, if there is one, and without those to be dropped."""
    table = read_table(path, label, column, drop)
    classes, y = _numbered(table.labels)
    x = table.features
    return Raw(path.name, x, y, x[:0], y[:0], classes, _digest([path]), table.names, table.apart)


def read_arrays(path: Path) -> Raw:
    """The arrays x and y of an .npz file, and x_test and y_test if there are."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # what NumPy raises depends on the damage
        raise DataError(f"{path}: not a sound .npz file of plain arrays ({error}).") from None
    if not {"x", "y"} <= arrays.keys():
        raise DataError(f"{path}: it must hold the arrays x and y; it holds {', '.join(sorted(arrays)) or 'none'}.")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path}: of x_test and y_test it holds only one.")
    x, y = _checked(path, "x", arrays["x"]), arrays["y"]
    x_test, y_test = (
        (_checked(path, "x_test", arrays["x_test"]), arrays["y_test"]) if "x_test" in arrays else (x[:0], y[:0])
    )
    for name, inputs, labels in (("y", x, y), ("y_test", x_test, y_test)):
        if labels.ndim != 1 or len(labels) != len(inputs) or labels.dtype.kind not in "iuU":
            raise DataError(f"{path}: {name} must hold a whole number or a word for each example.")
    if x_test.shape[1:] != x.shape[1:] or x_test.dtype != x.dtype:
        raise DataError(f"{path}: x_test holds {x_test.dtype} {x_test.shape[1:]}, x {x.dtype} {x.shape[1:]}.")
    if strange := set(y_test.tolist()) - set(y.tolist()):
        raise DataError(f"{path}: y_test holds {min(strange, key=str)!r}, which is not in y.")
    classes, numbers = _numbered([*y.tolist(), *y_test.tolist()])
    return Raw(path.name, x, numbers[: len(y)], x_test, numbers[len(y) :], classes, _digest([path]))


def _checked(path: Path, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Images as uint8 or finite float32; features as finite numbers."""
    if x.ndim not in (2, 4) or 0 in x.shape[1:] or (name == "x" and len(x) == 0):
        raise DataError(
            f"{path}: {name} must be features (examples, features) or images (examples, channels, height, width), "
            f"not of shape {x.shape}."
        )
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    if x.dtype.kind not in "iuf":
        raise DataError(f"{path}: {name} holds {x.dtype}, numbers are needed.")
    x = x.astype(np.float64 if x.ndim == 2 else np.float32)
    if not np.isfinite(x).all():
        where = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0])
        raise DataError(f"{path}: {name}[{where}] holds NaN or infinity. Fill it in or leave it out.")
    return x


def read_folder(path: Path) -> Raw:
    """The images of a folder with a folder for every class, all of one size."""
    if not path.is_dir():
        raise DataError(f"{path}: not a .csv, .parquet or .npz file, nor a folder of class folders.")
    files = _files(path)
    size = _size(files[0][0])
    x = np.stack([read_image(file, size) for file, _ in files])
    classes, y = _numbered([name for _, name in files])
    return Raw(path.name, x, y, x[:0], y[:0], classes, _digest([file for file, _ in files]))


def folder_classes(path: Path) -> tuple[tuple[str, ...], str]:
    """What the classes of such a folder are called, and the digest of its images, which are not decoded for it."""
    files = _files(path)
    return tuple(_numbered([name for _, name in files])[0]), _digest([file for file, _ in files])


def file_digest(path: Path) -> str:
    """The digest of a table or of arrays, which are not understood for it."""
    return _digest([path])


def _files(path: Path) -> list[tuple[Path, str]]:
    """Every image with the name of its class."""
    return [(file, name) for name, images in sorted(class_folders(path).items()) for file in images]


def _size(path: Path) -> int:
    """The width of the first image; all others must be as wide, and as high."""
    try:
        from PIL import Image

        with Image.open(path, formats=("JPEG", "PNG")) as image:
            return int(image.width)
    except Exception:  # read_image says what is wrong with it, or that Pillow is missing
        return 1


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(f"{file.parent.name}/{file.name}\n") if len(files) > 1 else b"")
        with file.open("rb") as opened:
            while block := opened.read(2**20):
                digest.update(block)
    return digest.hexdigest()[:12]


def _numbered(labels: Sequence[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """The classes in order (numbers by size, words by the alphabet), and each label's place among them."""
    distinct = set(labels)
    sizes = {label: _size_of(label) for label in distinct}
    words = any(math.isnan(size) for size in sizes.values())
    order = sorted(distinct, key=lambda label: (0.0 if words else sizes[label], str(label)))
    places = {label: place for place, label in enumerate(order)}
    return [str(label) for label in order], np.array([places[label] for label in labels], dtype=np.int64)


def _size_of(label: Any) -> float:
    try:
        return float(label)
    except ValueError:
        return math.nan
