"""Decoded images in the cache, stored as memory-mapped arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from gmed.data.dataset import Dataset, Progress
from gmed.data.images import ImageSource, Part
from gmed.data.paths import atomic_dir, file_signature, writing
from gmed.errors import DataError

VERSION = 2
"""Increased whenever a change to the decoding changes pixels or their order."""

PARTS: tuple[Part, Part] = ("train", "test")


def fingerprint(source: ImageSource, size: int) -> str:
    """Return a name for the decoded images: a hash of the paths, sizes and modification times of the files."""
    content = repr((VERSION, size, tuple(map(file_signature, source.files))))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def decode(source: ImageSource, size: int, target: Path, progress: Progress) -> None:
    """Decode all images into ``target``, class by class; the folder appears when it is complete."""
    counts = np.array(list(source.counts.values()))
    with atomic_dir(target) as folder:
        data_start = {}
        with writing(target):
            for part, class_counts in zip(PARTS, counts.T, strict=True):
                np.save(folder / f"y_{part}.npy", np.repeat(np.arange(len(counts)), class_counts))
                data_start[part] = _write_header(folder / f"x_{part}.npy", (int(class_counts.sum()), 3, size, size))
        for part, index, x in _indexed_blocks(source, size, progress):
            with writing(target), (folder / f"x_{part}.npy").open("rb+") as file:
                file.seek(data_start[part] + index * x[0].nbytes)
                file.write(x.tobytes())


def compare(source: ImageSource, size: int, data: Dataset, progress: Progress) -> None:
    """Decode all images again and compare them with the copy in the cache."""
    for part, index, x in _indexed_blocks(source, size, progress):
        cached = data.x_train if part == "train" else data.x_test
        if not np.array_equal(cached[index : index + len(x)], x):
            raise _damaged(data.name, f"the decoded copy of {data.name}")


def open_decoded(name: str, folder: Path, size: int) -> Dataset:
    """Open the data set that was decoded into a folder."""
    arrays = {}
    for part in PARTS:
        try:
            x = np.load(folder / f"x_{part}.npy", mmap_mode="r", allow_pickle=False)
            y = np.load(folder / f"y_{part}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            raise _damaged(name, str(folder)) from None
        if (x.dtype, y.dtype, x.shape) != (np.uint8, np.int64, (y.size, 3, size, size)):
            raise _damaged(name, str(folder))
        arrays[part] = x, y
    (x_train, y_train), (x_test, y_test) = arrays["train"], arrays["test"]
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes=int(y_train.max()) + 1)


def _write_header(path: Path, shape: tuple[int, ...]) -> int:
    """Write the header of a uint8 array; return the offset of its data."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return file.tell()


def _indexed_blocks(
    source: ImageSource, size: int, progress: Progress
) -> Iterator[tuple[Part, int, NDArray[np.uint8]]]:
    """Yield blocks of images, each with the index of its first image in the full array; report those that are done."""
    starts: dict[tuple[str, Part], int] = {}
    ends = dict.fromkeys(PARTS, 0)
    for name, counts in source.counts.items():
        for part, count in zip(PARTS, counts, strict=True):
            starts[name, part] = ends[part]
            ends[part] += count
    done, total = 0, sum(ends.values())
    progress(done, total)
    for name, part, x in source.blocks(size):
        yield part, starts[name, part], x
        done += len(x)
        progress(done, total)


def _damaged(name: str, what: str) -> DataError:
    return DataError(f"{what} is damaged. Remove it with: gmed data remove {name}; the images are then decoded again.")
