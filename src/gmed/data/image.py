"""Reader of JPEG and PNG files as 8-bit RGB; an image that cannot be converted faithfully is an error."""

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
"""Modes that Pillow converts to RGB faithfully. It would clip 16-bit gray at 255."""


def read_image(path: Path, size: int) -> NDArray[np.uint8]:
    """Read a JPEG or PNG file as (3, size, size); refuse another size."""
    try:
        with open_regular(path) as file:
            return decode_image(file, path, size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None


def decode_image(file: BinaryIO, path: Path, size: int) -> NDArray[np.uint8]:
    """Decode the image in an open file as (3, size, size); refuse another size."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            f"{path}: Pillow is needed to read images. Install it with: pip install 'gmed[images]'"
        ) from None
    try:
        with Image.open(file, formats=FORMATS) as image:
            actual = image.size
            pixels = _to_rgb(image, path) if actual == (size, size) else None
    except DataError:
        raise
    except Exception as error:  # Pillow raises different errors for different formats and damage
        raise DataError(f"{path}: not a valid image ({error}). Replace it with the original.") from None
    if pixels is None:
        raise DataError(
            f"{path}: {actual[0]} x {actual[1]} pixels, not {size} x {size}. Resize it, for example with Pillow: "
            f'Image.open(p).convert("RGB").resize(({size}, {size})).save(p)',
        )
    return pixels.transpose(2, 0, 1)


def image_width(file: BinaryIO) -> int:
    """Return the width in the header of an open image file, or 1 if it is unreadable."""
    try:
        from PIL import Image

        with Image.open(file, formats=FORMATS) as image:
            return int(image.width)
    except Exception:  # decode_image reports the problem, or that Pillow is missing
        return 1


def is_16_bit_gray(header: bytes) -> bool:
    """Return whether the first bytes of a file are those of a 16-bit grayscale PNG."""
    return header[:8] == b"\x89PNG\r\n\x1a\n" and header[12:16] == b"IHDR" and header[24:26] == b"\x10\x00"


def _to_rgb(image: Image, path: Path) -> NDArray[np.uint8]:
    """Return the pixels as (height, width, 3)."""
    if image.format == "PNG" and getattr(image, "n_frames", 1) > 1:
        raise DataError(f"{path}: an animation. Save a single frame of it.")
    if image.mode.startswith("I"):
        return _scale_16_bit(image, path)
    if image.mode not in CONVERTED:
        raise DataError(f"{path}: the image mode {image.mode!r} is not supported. Save it as 8-bit RGB or grayscale.")
    if "A" in image.getbands() or "transparency" in image.info:
        pixels = np.asarray(image.convert("RGBA"))
        _require_opaque(pixels[:, :, 3] == 255, path)
        return pixels[:, :, :3]
    return np.asarray(image.convert("RGB"))


def _scale_16_bit(image: Image, path: Path) -> NDArray[np.uint8]:
    """Scale 16-bit gray to 8 bits: 0 stays black and 65535 becomes white."""
    values = np.asarray(image).astype(np.int64)
    if (transparent_value := image.info.get("transparency")) is not None:
        _require_opaque(values != transparent_value, path)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"{path}: values outside the 16-bit range. Save it as 8-bit RGB or grayscale.")
    return np.repeat(((values + 128) // 257).astype(np.uint8)[:, :, None], 3, axis=2)


def _require_opaque(opaque: NDArray[np.bool_], path: Path) -> None:
    if not opaque.all():
        raise DataError(
            f"{path}: the image has transparent pixels, and their background is unknown. Save it without transparency."
        )
