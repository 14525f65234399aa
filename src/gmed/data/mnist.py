"""Reader of MNIST, which is part of the package, and of the idx format."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset
from gmed.errors import DataError
from gmed.io.files import read_bytes
from gmed.io.memory_limit import check_room

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


def read_idx(path: Path, dimensions: int, sha256: str | None = None) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes with the given number of dimensions.

    A file that differs from the expected one raises a :class:`~gmed.errors.DataError` that names the file and the
    problem; with ``sha256``, the compressed file must have this checksum.
    """

    def invalid(problem: str) -> DataError:
        return DataError(f"{path}: {problem}. Replace the file with the original.")

    try:
        raw = read_bytes(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Put the original file there, or omit --data-dir.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, 0x08, dimensions])
    try:
        with gzip.GzipFile(fileobj=BytesIO(raw)) as file:
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
        raise invalid("altered: its SHA-256 checksum is not the published file's")
    try:
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    except ValueError:  # zero bytes cannot have dimensions that overflow
        raise invalid(f"the shape {shape} in its header is impossible") from None
