"""CIFAR-10 and CIFAR-100 from the official binary files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset
from gmed.data.paths import FileSignatures, file_signatures, find_folder
from gmed.errors import DataError
from gmed.io.files import open_regular

IMAGE = (3, 32, 32)


@dataclass(frozen=True)
class RecordFile:
    """A file of so many records and, where it is a published one, its checksum."""

    name: str
    records: int
    sha1: str | None = None


def record_bytes(classes: Sequence[int]) -> int:
    """The length of a record with one label byte for each of these numbers of classes.

    >>> record_bytes([20, 100])
    3074
    """
    return len(classes) + int(np.prod(IMAGE))


def read_records(folder: Path, file: RecordFile, classes: Sequence[int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images and the labels of a file; of several label bytes the last, finest one counts.

    Anything but exactly the expected file is refused with a :class:`~gmed.errors.DataError` naming the file
    and what is wrong with it.

    Parameters
    ----------
    classes
        How many classes each label byte may name: ``[10]``, or ``[20, 100]`` for coarse and fine ones.
    """
    path = folder / file.name

    def refuse(what: str) -> DataError:
        return DataError(f"{path}: {what}. Replace the file with the original; `gmed data fetch` gets it.")

    expected = file.records * record_bytes(classes)
    try:
        with open_regular(path) as opened:
            raw = opened.read(expected + 1)
    except FileNotFoundError:
        raise refuse("no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(raw) < expected:
        raise refuse(f"truncated: {len(raw):,} bytes where {file.records:,} records take {expected:,}")
    if len(raw) > expected:
        raise refuse(f"too long: more than the {expected:,} bytes of {file.records:,} records")
    if file.sha1 is not None and hashlib.sha1(raw, usedforsecurity=False).hexdigest() != file.sha1:
        raise refuse("altered: its SHA-1 checksum is not the published file's")

    rows = np.frombuffer(raw, np.uint8).reshape(file.records, record_bytes(classes))
    for column, limit in enumerate(classes):
        wrong = np.flatnonzero(rows[:, column] >= limit)
        if wrong.size:
            raise refuse(f"record {wrong[0]:,} has label {rows[wrong[0], column]}, labels end at {limit - 1}")
    return rows[:, len(classes) :].reshape(-1, *IMAGE), rows[:, len(classes) - 1].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Cifar:
    """One of the two data sets: the folder it comes in, the files in it, and the archive that holds them."""

    name: str
    folder: str
    classes: tuple[int, ...]
    train: tuple[RecordFile, ...]
    test: tuple[RecordFile, ...]
    url: str
    md5: str

    def find(self, directory: Path | None = None) -> Path:
        """The folder with the files: the one given or a folder in it, else in ``$GMED_DATA`` or the cache."""
        return find_folder(
            self.name,
            self.folder,
            directory,
            holds=lambda folder: any((folder / file.name).is_file() for file in self.files),
            how_to_get=f"Get it with: gmed data fetch {self.name}; or say where it is with --data-dir or $GMED_DATA",
        )

    @property
    def files(self) -> tuple[RecordFile, ...]:
        return self.train + self.test

    def load(self, directory: Path | None = None) -> Dataset:
        """The data set, every file checked; kept in memory until another is loaded or the files change."""
        folder = self.find(directory)
        return _load(self, folder, file_signatures(folder / file.name for file in self.files))


@lru_cache(maxsize=1)
def _load(cifar: Cifar, folder: Path, _unchanged: FileSignatures) -> Dataset:
    x_train, y_train = _read(folder, cifar.train, cifar.classes)
    x_test, y_test = _read(folder, cifar.test, cifar.classes)
    return Dataset(cifar.name, x_train, y_train, x_test, y_test, num_classes=cifar.classes[-1])


def _read(
    folder: Path, files: tuple[RecordFile, ...], classes: tuple[int, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x, y = zip(*(read_records(folder, file, classes) for file in files), strict=True)
    images = np.concatenate(x)
    images.setflags(write=False)  # the next caller is given the same array
    return images, np.concatenate(y)


CIFAR10 = Cifar(
    name="cifar10",
    folder="cifar-10-batches-bin",
    classes=(10,),
    train=(
        RecordFile("data_batch_1.bin", 10_000, "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        RecordFile("data_batch_2.bin", 10_000, "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        RecordFile("data_batch_3.bin", 10_000, "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        RecordFile("data_batch_4.bin", 10_000, "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        RecordFile("data_batch_5.bin", 10_000, "26e2849e66a845b7f1e4614ae70f4889ae604628"),
    ),
    test=(RecordFile("test_batch.bin", 10_000, "67eb016db431130d61cd03c7ad570b013799c88c"),),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)

CIFAR100 = Cifar(
    name="cifar100",
    folder="cifar-100-binary",
    classes=(20, 100),
    train=(RecordFile("train.bin", 50_000, "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
    test=(RecordFile("test.bin", 10_000, "8fb6623e830365ff53cf14adec797474f5478006"),),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
)


def load_cifar10(directory: Path | None = None) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 colour photographs of 10 kinds of things, 32 x 32.

    Parameters
    ----------
    directory
        The folder with the official binary files, or the one around it; by default ``$GMED_DATA`` or the
        cache that ``gmed data fetch cifar10`` fills. Checksums are verified wherever the files are.

    References
    ----------
    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    return CIFAR10.load(directory)


def load_cifar100(directory: Path | None = None) -> Dataset:
    """CIFAR-100: 50,000 + 10,000 colour photographs of 100 kinds of things (the fine labels), 32 x 32.

    Parameters
    ----------
    directory
        The folder with the official binary files, or the one around it; by default ``$GMED_DATA`` or the
        cache that ``gmed data fetch cifar100`` fills. Checksums are verified wherever the files are.

    References
    ----------
    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    return CIFAR100.load(directory)
