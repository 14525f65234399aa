"""Reader of the idx format of MNIST (a gzip file: magic number, big-endian sizes, then bytes)."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.data.room import check_room
from gmed.errors import DataError
from gmed.io.files import read_bytes


def read_idx(path: Path, dimensions: int, sha256: str | None = None) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes with the given number of dimensions.

    Anything but exactly the expected file is refused with a :class:`~gmed.errors.DataError` naming the file
    and what is wrong with it; with ``sha256`` the compressed file itself must be the known one.
    """

    def refuse(what: str) -> DataError:
        return DataError(f"{path}: {what}. Replace the file with the original.")

    try:
        raw = read_bytes(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Put the original there, or leave out --data-dir.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, 0x08, dimensions])
    try:
        with gzip.GzipFile(fileobj=BytesIO(raw)) as file:
            content = file.read(header)
            if content[:4] != magic:
                raise refuse(f"wrong magic number {content[:4].hex()}, expected {magic.hex()}")
            if len(content) < header:
                raise refuse(f"truncated: {len(content)} bytes, the header alone has {header}")
            shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=dimensions, offset=4))
            expected = header + math.prod(shape)
            check_room(path, f"what its header {shape} calls for", expected)
            content += file.read(expected - header + 1)
    except EOFError:
        raise refuse("truncated: the compressed data end early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise refuse(f"not a sound gzip file ({error})") from None
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        found = f"{len(content)} bytes" if len(content) < expected else "more bytes"
        raise refuse(f"{kind}: {found} where its header {shape} calls for {expected}")
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise refuse("altered: its SHA-256 checksum is not the published file's")
    try:
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    except ValueError:  # none of something larger than memory can be
        raise refuse(f"its header calls for the impossible sizes {shape}") from None
