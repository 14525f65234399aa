"""Decoded images in the cache: arrays that are mapped into memory, not read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gmed.data.dataset import Dataset, Progress
from gmed.data.image_folders import ImageSource, Part
from gmed.data.paths import atomic_dir, file_signatures, writing
from gmed.errors import DataError

VERSION = 2
"""Raised whenever a change to the decoding changes pixels or their order."""

PARTS: tuple[Part, Part] = ("train", "test")


def fingerprint(source: ImageSource, size: int) -> str:
    """A name for what decoding gives, made of the paths of the files, their sizes and times of change."""
    told = repr((VERSION, size, file_signatures(source.files)))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def decode(source: ImageSource, size: int, target: Path, progress: Progress) -> None:
    """Write all images into ``target``, class by class as they are decoded; it appears when all are there."""
    counts = np.array(list(source.counts.values()))
    done, total = 0, int(counts.sum())
    progress(done, total)
    with atomic_dir(target) as folder:
        begin = {}
        with writing(target):
            for part, of_each in zip(PARTS, counts.T, strict=True):
                np.save(folder / f"y_{part}.npy", np.repeat(np.arange(len(counts)), of_each))
                begin[part] = _begin(folder / f"x_{part}.npy", (int(of_each.sum()), 3, size, size))
        for part, at, x in _placed(source, size):
            with writing(target), (folder / f"x_{part}.npy").open("rb+") as file:
                file.seek(begin[part] + at * x[0].nbytes)
                file.write(x.tobytes())
            done += len(x)
            progress(done, total)


def compare(source: ImageSource, size: int, data: Dataset, progress: Progress) -> None:
    """Decode all images again and hold them against the copy in the cache."""
    done, total = 0, len(data.y_train) + len(data.y_test)
    progress(done, total)
    for part, at, x in _placed(source, size):
        kept = data.x_train if part == "train" else data.x_test
        if not np.array_equal(kept[at : at + len(x)], x):
            raise _damaged(data.name, f"the decoded copy of {data.name}")
        done += len(x)
        progress(done, total)


def open_decoded(name: str, folder: Path, size: int) -> Dataset:
    """The data set that was decoded into a folder."""
    found = {}
    for part in PARTS:
        try:
            x = np.load(folder / f"x_{part}.npy", mmap_mode="r", allow_pickle=False)
            y = np.load(folder / f"y_{part}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise _damaged(name, str(folder)) from None
        if (x.dtype, y.dtype, x.shape) != (np.uint8, np.int64, (y.size, 3, size, size)):
            raise _damaged(name, str(folder))
        found[part] = x, y
    (x_train, y_train), (x_test, y_test) = found["train"], found["test"]
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes=int(y_train.max()) + 1)


def _begin(path: Path, shape: tuple[int, ...]) -> int:
    """Write the beginning of an array of bytes; where its first one goes."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return file.tell()


def _placed(source: ImageSource, size: int) -> Iterator[tuple[Part, int, NDArray[np.uint8]]]:
    """The blocks of images, with the place of each in the array of all."""
    before: dict[tuple[str, Part], int] = {}
    ends = dict.fromkeys(PARTS, 0)
    for name, counts in source.counts.items():
        for part, count in zip(PARTS, counts, strict=True):
            before[name, part] = ends[part]
            ends[part] += count
    for name, part, x in source.blocks(size):
        yield part, before[name, part], x


def _damaged(name: str, what: str) -> DataError:
    return DataError(f"{what} is damaged. Remove it with: gmed data remove {name}; it is then decoded again.")
