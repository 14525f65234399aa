"""Reader of one image file, JPEG or PNG: what is in it as eight bits a color, or an error, never something else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError
from gmed.io.files import open_regular

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG")

CONVERTED = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
"""Modes that Pillow converts to RGB as they are seen. It would cut what is above 255 off 16-bit gray."""


def read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """A JPEG or PNG file as (3, size, size), which it must have."""
    try:
        with open_regular(path) as file:
            return decode_image(file, path, size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None


def decode_image(file: BinaryIO, path: Path, size: int) -> NDArray[np.uint8]:
    """The image in an open file as (3, size, size), which it must have."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            f"{path}: Pillow is needed to read images. Install it with: pip install 'gmed[images]'"
        ) from None
    try:
        with Image.open(file, formats=FORMATS) as image:
            found = image.size
            pixels = _pixels(image, path) if found == (size, size) else None
    except DataError:
        raise
    except Exception as error:  # what Pillow raises depends on the format and on the damage
        raise DataError(f"{path}: not a sound image ({error}). Replace it with the original.") from None
    if pixels is None:
        raise DataError(
            f"{path}: {found[0]} x {found[1]} pixels, not {size} x {size}. Resize it, for example with Pillow: "
            f'Image.open(p).convert("RGB").resize(({size}, {size})).save(p)',
        )
    return pixels.transpose(2, 0, 1)


def image_width(file: BinaryIO) -> int:
    """The width that an image in an open file says it has; 1 where it cannot be told."""
    try:
        from PIL import Image

        with Image.open(file, formats=FORMATS) as image:
            return int(image.width)
    except Exception:  # decode_image says what is wrong with it, or that Pillow is missing
        return 1


def is_16_bit_gray(beginning: bytes) -> bool:
    """Whether a file that begins so is a PNG of gray in 16 bits."""
    return beginning[:8] == b"\x89PNG\r\n\x1a\n" and beginning[12:16] == b"IHDR" and beginning[24:26] == b"\x10\x00"


def _pixels(image: Image, path: Path) -> NDArray[np.uint8]:
    """The pixels as (height, width, 3)."""
    if image.format == "PNG" and getattr(image, "n_frames", 1) > 1:
        raise DataError(f"{path}: an animation. Save the one picture of it that is meant.")
    if image.mode.startswith("I"):
        return _scale_16_bit(image, path)
    if image.mode not in CONVERTED:
        raise DataError(f"{path}: a picture of the kind {image.mode!r}. Save it as RGB or gray of 8 bits.")
    if "A" in image.getbands() or "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA"))
        _require_opaque(pixels[:, :, 3] == 255, path)
        return pixels[:, :, :3]
    return np.asarray(image.convert("RGB"))


def _scale_16_bit(image: Image, path: Path) -> NDArray[np.uint8]:
    """Gray of 16 bits, brought to 8: 0 stays black and 65535 becomes white."""
    values = np.asarray(image).astype(np.int64)
    if (transparent := image.info.get("transparency")) is not None:
        _require_opaque(values != transparent, path)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"{path}: values that are not of 16 bits. Save it as RGB or gray of 8 bits.")
    return np.repeat(((values + 128) // 257).astype(np.uint8)[:, :, None], 3, axis=2)


def _require_opaque(opaque: NDArray[np.bool_], path: Path) -> None:
    if not opaque.all():
        raise DataError(
            f"{path}: it is transparent in places, and what is behind it is not known. "
            "Save it on the background that is meant."
        )
