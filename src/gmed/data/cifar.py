"""Readers of CIFAR-10 and CIFAR-100 from the official binary files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset, DataSource, Progress, no_progress
from gmed.data.download import download, unpack
from gmed.data.paths import (
    FileSignature,
    atomic_dir,
    cache_dir,
    exclusive,
    file_signature,
    find_folder,
    remove_cached,
    writing,
)
from gmed.errors import DataError
from gmed.io.files import open_regular, reading

IMAGE = (3, 32, 32)


@dataclass(frozen=True)
class RecordFile:
    """A binary file: its name, its number of records and, for a published file, its SHA-1 checksum."""

    name: str
    records: int
    sha1: str | None = None


def record_bytes(classes: Sequence[int]) -> int:
    """Return the length of a record in bytes: one label byte for each entry of ``classes``, then the pixels.

    >>> record_bytes([20, 100])
    3074
    """
    return len(classes) + int(np.prod(IMAGE))


def read_records(folder: Path, file: RecordFile, classes: Sequence[int]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images and labels of a file; of several label bytes, the last (finest) one is the label.

    A file that differs from the expected one raises a :class:`~gmed.errors.DataError` that names the file and the
    problem.

    Parameters
    ----------
    classes
        The number of classes of each label byte: ``[10]``, or ``[20, 100]`` for coarse and fine labels.
    """
    path = folder / file.name

    def invalid(problem: str) -> DataError:
        return DataError(f"{path}: {problem}. Replace the file with the original; `gmed data fetch` gets it.")

    expected = file.records * record_bytes(classes)
    with reading(path):
        try:
            with open_regular(path) as stream:
                raw = stream.read(expected + 1)
        except FileNotFoundError:
            raise invalid("no such file") from None
    if len(raw) < expected:
        raise invalid(f"truncated: {len(raw):,} bytes instead of {expected:,} ({file.records:,} records)")
    if len(raw) > expected:
        raise invalid(f"too long: more than the {expected:,} bytes of {file.records:,} records")
    if file.sha1 is not None and hashlib.sha1(raw, usedforsecurity=False).hexdigest() != file.sha1:
        raise invalid("altered: its SHA-1 checksum differs from that of the published file")

    records = np.frombuffer(raw, np.uint8).reshape(file.records, record_bytes(classes))
    for column, limit in enumerate(classes):
        out_of_range = np.flatnonzero(records[:, column] >= limit)
        if out_of_range.size:
            index = out_of_range[0]
            raise invalid(f"record {index:,} has label {records[index, column]}, but the largest label is {limit - 1}")
    return records[:, len(classes) :].reshape(-1, *IMAGE), records[:, len(classes) - 1].astype(np.int64)


FETCHED_MARKER = ".fetched"
"""A file that marks a folder in the cache as fetched: it may be removed."""


@dataclass(eq=False)
class Cifar(DataSource):
    """One of the two data sets: its folder, its files, and the archive that contains them."""

    name: str
    folder: str
    classes: tuple[int, ...]
    train: tuple[RecordFile, ...]
    test: tuple[RecordFile, ...]
    url: str
    md5: str
    images: str
    disk: str = "184 MB"

    @property
    def files(self) -> tuple[RecordFile, ...]:
        """All files, those for training first."""
        return self.train + self.test

    @property
    def archive(self) -> Path:
        """The path of the archive while it is being fetched."""
        return cache_dir() / "downloads" / self.url.rpartition("/")[2]

    def find(self, directory: Path | None = None) -> Path:
        """Return the folder with the files: ``directory`` or a subfolder, else one in ``$GMED_DATA`` or the cache."""
        return find_folder(
            self.name,
            self.folder,
            directory,
            contains=lambda folder: any((folder / file.name).is_file() for file in self.files),
            how_to_get=f"Get it with: gmed data fetch {self.name}; or give its folder with --data-dir or $GMED_DATA",
        )

    def load(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        """Load the data set and verify every file; cached in memory until another is loaded or a file changes."""
        folder = self.find(directory)
        paths = [folder / file.name for file in self.files]
        return _load(self, folder, tuple(file_signature(path) for path in paths if path.exists()))

    def fetch(self, progress: Progress = no_progress) -> Path:
        """Download the data set into the cache, unless an intact copy is there already; return its folder.

        The folder appears when every file in it is verified. If several processes fetch at once, one downloads and the
        others wait.
        """
        folder = cache_dir() / self.folder
        with exclusive(folder):
            if self._is_intact(folder):
                return folder
            if folder.exists() and not (folder / FETCHED_MARKER).exists():
                raise DataError(
                    f"{folder}: damaged, and not created by `gmed data fetch`. Move it away, then fetch again."
                )
            download(self.url, self.archive, self.md5, progress)
            sizes = {f"{self.folder}/{file.name}": file.records * record_bytes(self.classes) for file in self.files}
            with atomic_dir(folder) as building:
                unpack(self.archive, sizes, building)
                self._check(building)
                with writing(folder):
                    message = f"Fetched from {self.url}; `gmed data remove {self.name}` removes it.\n"
                    (building / FETCHED_MARKER).write_text(message, encoding="utf-8")
            with suppress(OSError):
                self.archive.unlink()
        return folder

    def remove(self) -> list[Path]:
        """Remove a fetched data set from the cache; return the removed paths."""
        folder = cache_dir() / self.folder
        if folder.is_symlink() or (folder.exists() and not (folder / FETCHED_MARKER).exists()):
            raise DataError(
                f"{folder}: not created by `gmed data fetch`, so it is not removed. Delete it yourself if necessary."
            )
        return remove_cached(folder, self.archive, self.archive.with_name(f"{self.archive.name}.part"))

    def _is_intact(self, folder: Path) -> bool:
        with suppress(DataError):
            self._check(folder)
            return True
        return False

    def _check(self, folder: Path) -> None:
        for file in self.files:
            read_records(folder, file, self.classes)


@lru_cache(maxsize=1)
def _load(cifar: Cifar, folder: Path, _signatures: tuple[FileSignature, ...]) -> Dataset:
    x_train, y_train = _read(folder, cifar.train, cifar.classes)
    x_test, y_test = _read(folder, cifar.test, cifar.classes)
    return Dataset(cifar.name, x_train, y_train, x_test, y_test, num_classes=cifar.classes[-1])


def _read(
    folder: Path, files: tuple[RecordFile, ...], classes: tuple[int, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images, labels = zip(*(read_records(folder, file, classes) for file in files), strict=True)
    x = np.concatenate(images)
    x.setflags(write=False)  # cached: every caller gets the same array
    return x, np.concatenate(labels)


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
    images="60,000 of 32 x 32, 10 classes",
)

CIFAR100 = Cifar(
    name="cifar100",
    folder="cifar-100-binary",
    classes=(20, 100),
    train=(RecordFile("train.bin", 50_000, "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
    test=(RecordFile("test.bin", 10_000, "8fb6623e830365ff53cf14adec797474f5478006"),),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    images="60,000 of 32 x 32, 100 classes",
)


def load_cifar10(directory: Path | None = None) -> Dataset:
    """Load CIFAR-10: 50,000 + 10,000 color photographs of 32 x 32 pixels in 10 classes.

    Parameters
    ----------
    directory
        The folder with the official binary files, or its parent folder; by default ``$GMED_DATA`` or the
        cache that ``gmed data fetch cifar10`` fills. Checksums are verified wherever the files are.

    References
    ----------
    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    return CIFAR10.load(directory)


def load_cifar100(directory: Path | None = None) -> Dataset:
    """Load CIFAR-100: 50,000 + 10,000 color photographs of 32 x 32 pixels in 100 classes (the fine labels).

    Parameters
    ----------
    directory
        The folder with the official binary files, or its parent folder; by default ``$GMED_DATA`` or the
        cache that ``gmed data fetch cifar100`` fills. Checksums are verified wherever the files are.

    References
    ----------
    Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    return CIFAR100.load(directory)
