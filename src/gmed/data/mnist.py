"""Reader of MNIST, which is part of the package, and of the idx format."""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import zlib
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset, DataSource, Progress, no_progress
from gmed.errors import DataError
from gmed.io.files import check_room, read_bytes, reading

PACKAGED = Path(__file__).parent / "mnist_files"

SHA256 = {
    "train-images-idx3-ubyte.gz": "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
    "train-labels-idx1-ubyte.gz": "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
    "t10k-images-idx3-ubyte.gz": "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
    "t10k-labels-idx1-ubyte.gz": "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
}


@lru_cache(maxsize=1)
def load_mnist(directory: Path | None = None) -> Dataset:
    """Load MNIST: 60,000 + 10,000 images of handwritten digits, 28 x 28 pixels in 10 classes.

    Parameters
    ----------
    directory
        A folder with the four official ``.gz`` files; by default the copies inside the package. Checksums
        are verified either way.

    Examples
    --------
    >>> mnist = load_mnist()
    >>> mnist.x_train.shape, mnist.x_test.shape, mnist.num_classes
    ((60000, 1, 28, 28), (10000, 1, 28, 28), 10)

    References
    ----------
    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition",
    Proceedings of the IEEE 86(11), 1998.
    """
    folder = Path(directory) if directory is not None else PACKAGED

    def images(name: str) -> NDArray[np.uint8]:
        return read_idx(folder / name, 3, SHA256[name])[:, None]

    def labels(name: str) -> NDArray[np.int64]:
        return read_idx(folder / name, 1, SHA256[name]).astype(np.int64)

    return Dataset(
        name="mnist",
        x_train=images("train-images-idx3-ubyte.gz"),
        y_train=labels("train-labels-idx1-ubyte.gz"),
        x_test=images("t10k-images-idx3-ubyte.gz"),
        y_test=labels("t10k-labels-idx1-ubyte.gz"),
        num_classes=10,
    )


class Mnist(DataSource):
    """The copy inside the package, or one in another folder."""

    name = "mnist"
    images = "70,000 of 28 x 28, 10 classes"
    disk = "12 MB"

    def find(self, directory: Path | None = None) -> Path:
        """Return the folder of the package, or another that has one of the files."""
        if directory is None:
            return PACKAGED
        if any((directory / name).is_file() for name in SHA256):
            return directory
        raise DataError(f"mnist is not in {directory}. Omit --data-dir to use the copy in the package.")

    def load(self, directory: Path | None = None, progress: Progress = no_progress) -> Dataset:
        return load_mnist(directory)

    def fetch(self, progress: Progress = no_progress) -> Path:
        """Return the folder of the package."""
        return PACKAGED


MNIST = Mnist()

_TRAIN_IMAGES = re.compile(r"(.*)train-images([-.])idx3-ubyte(\.gz)?")


def is_idx_file(path: Path) -> bool:
    """Return whether a file is named like the training images of MNIST: ``train-images-idx3-ubyte.gz``."""
    return _TRAIN_IMAGES.fullmatch(path.name) is not None


def find_idx_files(path: Path) -> list[Path]:
    """Return the idx files of a data set like MNIST: training images and labels, then those of the test set, if any.

    Parameters
    ----------
    path
        The folder of the files, or the file of the training images. Anything else has no idx files.
    """
    if is_idx_file(path):
        images = path
    else:
        found = sorted(path.glob("*train-images*")) if path.is_dir() else []
        found = [file for file in found if is_idx_file(file)]
        if not found:
            return []
        images = found[0]
        if len({file.name.removesuffix(".gz") for file in found}) > 1:
            raise DataError(f"{path}: holds several data sets. Give one of them: {' or '.join(f.name for f in found)}.")
    match = _TRAIN_IMAGES.fullmatch(images.name)
    assert match is not None

    prefix, dash, _ = match.groups()

    def find(name: str) -> Path | None:
        return next((file for end in ("", ".gz") if (file := images.with_name(name + end)).is_file()), None)

    files: list[Path] = []
    for part in ("train", "t10k", "test"):
        images_found = images if part == "train" else find(f"{prefix}{part}-images{dash}idx3-ubyte")
        if images_found is None or len(files) == 4:
            continue
        labels = f"{prefix}{part}-labels{dash}idx1-ubyte"
        if (labels_found := find(labels)) is None:
            raise DataError(
                f"{images_found}: its labels, {labels} or {labels}.gz, are missing. Put them beside this file."
            )
        files += [images_found, labels_found]
    return files


def read_idx(path: Path, dimensions: int, sha256: str | None = None) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes with the given number of dimensions, gzipped if its name ends in ``.gz``.

    A file that differs from the expected one raises a :class:`~gmed.errors.DataError` that names the file and the
    problem; with ``sha256``, the compressed file must have this checksum.
    """

    def invalid(problem: str) -> DataError:
        return DataError(f"{path}: {problem}. Replace the file with the original.")

    with reading(path):
        try:
            raw = read_bytes(path)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file. Put the original file there, or omit --data-dir.") from None
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, 0x08, dimensions])
    try:
        with gzip.GzipFile(fileobj=BytesIO(raw)) if path.suffix == ".gz" else BytesIO(raw) as file:
            content = file.read(header)
            if content[:4] != magic:
                raise invalid(f"wrong magic number {content[:4].hex()}, expected {magic.hex()}")
            if len(content) < header:
                raise invalid(f"truncated: {len(content)} bytes, the header alone has {header}")
            shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=dimensions, offset=4))
            expected = header + math.prod(shape)
            check_room(path, f"the array of shape {shape}", expected)
            content += file.read(expected - header + 1)
    except EOFError:
        raise invalid("truncated: the compressed data end early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise invalid(f"not a valid gzip file ({error})") from None
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        actual = f"{len(content)} bytes" if len(content) < expected else "more bytes"
        raise invalid(f"{kind}: {actual}, but the shape {shape} in its header requires {expected}")
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise invalid("altered: its SHA-256 checksum differs from that of the published file")
    try:
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    except ValueError:  # zero bytes cannot have dimensions that overflow
        raise invalid(f"the shape {shape} in its header is impossible") from None
