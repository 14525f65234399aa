"""Reader of the binary files of CIFAR (records of one or two label bytes and 3,072 pixels, nothing else)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
