"""Data of one's own as they are in their files."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gmed.data.image import decode_image, image_width, is_deep_gray
from gmed.data.image_folders import class_folders
from gmed.data.room import check_room
from gmed.data.table import read_table
from gmed.errors import DataError
from gmed.io.files import open_regular

NAMES = ("x", "y", "x_test", "y_test")
"""The arrays of an .npz file that are read."""

DEEP_GRAY = b"gray of 16 bits\n"
"""Part of the digest of such images: earlier results, from when they were read as black and white, are not theirs."""


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
    """The arrays x and y of an .npz file, and x_test and y_test if there are; whatever else is in it is not read."""
    try:
        with open_regular(path) as file:
            arrays = _arrays(path, file)
            file.seek(0)
            digest = _Digest(many=False)
            digest.update(path, file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None
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
    return Raw(path.name, x, numbers[: len(y)], x_test, numbers[len(y) :], classes, digest.text)


def _arrays(path: Path, file: BinaryIO) -> dict[str, NDArray[Any]]:
    """The arrays that are needed, once what each says of its size is known to be true and to fit into memory."""
    try:
        with ZipFile(file) as archive:
            members = {name: f"{name}.npy" for name in NAMES if f"{name}.npy" in archive.namelist()}
            if not {"x", "y"} <= members.keys():
                held = ", ".join(sorted(name.removesuffix(".npy") for name in archive.namelist())[:10])
                raise DataError(f"{path}: it must hold the arrays x and y; it holds {held or 'none'}.")
            if ("x_test" in members) != ("y_test" in members):
                raise DataError(f"{path}: of x_test and y_test it holds only one.")
            for name, member in members.items():
                _check_declared(path, name, archive, member)
            check_room(path, "what it holds", sum(archive.getinfo(member).file_size for member in members.values()))
            found = {}
            for name, member in members.items():
                with archive.open(member) as opened:
                    found[name] = npy.read_array(opened, allow_pickle=False)
            return found
    except DataError:
        raise
    except Exception as error:  # what NumPy raises depends on the damage
        raise DataError(f"{path}: not a sound .npz file of plain arrays ({error}).") from None


def _check_declared(path: Path, name: str, archive: ZipFile, member: str) -> None:
    """Refuse an array whose header promises other than the archive holds: memory is taken by the header's word."""
    with archive.open(member) as opened:
        major, _ = npy.read_magic(opened)
        read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, _, dtype = read_header(opened)
        begin = opened.tell()
    if dtype.hasobject or dtype.itemsize == 0 or major > 2 or any(length < 0 for length in shape):
        raise DataError(f"{path}: {name} holds {dtype}; plain arrays of numbers or words are needed.")
    size = begin + math.prod(shape) * dtype.itemsize
    if size != archive.getinfo(member).file_size:
        raise DataError(f"{path}: {name} is not as large as it says, {dtype} of shape {shape}. Write the file anew.")


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
    with _opened(files[0][0]) as first:
        size = image_width(first)
    check_room(path, f"{len(files)} images of {size} x {size} pixels", len(files) * 3 * size * size)
    x, digest = np.empty((len(files), 3, size, size), np.uint8), _Digest(many=len(files) > 1)
    for number, (file, _) in enumerate(files):
        with _opened(file) as opened:
            digest.update(file, opened)
            opened.seek(0)
            x[number] = decode_image(opened, file, size)
    classes, y = _numbered([name for _, name in files])
    return Raw(path.name, x, y, x[:0], y[:0], classes, digest.text)


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


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file to be read, or the error that says why it cannot be."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    with file:
        yield file


def _digest(files: Sequence[Path]) -> str:
    digest = _Digest(many=len(files) > 1)
    for path in files:
        with _opened(path) as file:
            digest.update(path, file)
    return digest.text


class _Digest:
    """Of the bytes of files, and of several files' names."""

    def __init__(self, *, many: bool) -> None:
        self._many, self._hash = many, hashlib.sha256()

    def update(self, path: Path, file: BinaryIO) -> None:
        self._hash.update(os.fsencode(f"{path.parent.name}/{path.name}\n") if self._many else b"")
        if is_deep_gray(file.read(26)):
            self._hash.update(DEEP_GRAY)
        file.seek(0)
        while block := file.read(2**20):
            self._hash.update(block)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()[:12]


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
