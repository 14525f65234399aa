"""Reader of the idx format of MNIST (a gzip file: magic number, big-endian sizes, then bytes)."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError


def read_idx(path: Path, dimensions: int, sha256: str | None = None) -> NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes with the given number of dimensions.

    Anything but exactly the expected file is refused with a :class:`~gmed.errors.DataError` naming the file
    and what is wrong with it; with ``sha256`` the compressed file itself must be the known one.
    """

    def refuse(what: str) -> DataError:
        return DataError(f"{path}: {what}. Replace the file with the original.")

    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file. Put the original there, or leave out --data-dir.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        content = gzip.decompress(raw)
    except EOFError:
        raise refuse("truncated: the compressed data end early") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise refuse(f"not a sound gzip file ({error})") from None

    magic = bytes([0, 0, 0x08, dimensions])
    if content[:4] != magic:
        raise refuse(f"wrong magic number {content[:4].hex()}, expected {magic.hex()}")
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise refuse(f"truncated: {len(content)} bytes, the header alone has {header}")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", count=dimensions, offset=4))
    expected = header + int(np.prod([int(n) for n in shape], dtype=object))
    if len(content) != expected:
        kind = "truncated" if len(content) < expected else "too long"
        raise refuse(f"{kind}: {len(content)} bytes where its header {shape} calls for {expected}")
    if sha256 is not None and hashlib.sha256(raw).hexdigest() != sha256:
        raise refuse("altered: its SHA-256 checksum is not the published file's")
    try:
        return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    except ValueError:  # none of something larger than memory can be
        raise refuse(f"its header calls for the impossible sizes {shape}") from None
