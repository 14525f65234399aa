"""Data augmentation: random views of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from gmed.errors import InputError, UsageError, check_float, check_int

__path__: list[str] = []  # it was a package, whose module is found by its old name


@dataclass(frozen=True)
class Augmentation:
    """Random views of images, a different one for each image, computed together on their device.

    Parameters
    ----------
    rotation
        Maximum rotation in either direction, in degrees.
    scaling
        Maximum change of size: 0.1 means 0.9 to 1.1 times.
    crop
        Maximum shift in each direction, in whole pixels: a random crop after zero padding by this width.
    flip
        Whether to flip images horizontally with probability one half.

    Examples
    --------
    >>> import torch
    >>> from gmed.rng import make_rng
    >>> x, augment = torch.rand(5, 1, 28, 28), Augmentation(rotation=10, crop=2)
    >>> augment(x, torch.from_numpy(augment.maps(x.shape, make_rng(0, "augmentation")))).shape
    torch.Size([5, 1, 28, 28])
    """

    rotation: float = 0.0
    scaling: float = 0.0
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        for name in ("rotation", "scaling"):
            if check_float(name, getattr(self, name)) < 0:
                raise UsageError(f"{name} must not be negative, not {getattr(self, name)!r}")
        if self.scaling >= 1:
            raise UsageError(f"scaling must be below 1, not {self.scaling!r}")
        check_int("crop", self.crop, minimum=0)

    def __call__(self, x: Tensor, maps: Tensor) -> Tensor:
        """Return the images transformed by affine maps."""
        if not len(x):
            return x
        grid = affine_grid(maps.to(x), list(x.shape), align_corners=False)
        return grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    def maps(self, shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw a random affine map for each image of a batch of this shape.

        It maps positions in the new image to positions in the old one, both in -1 .. 1 (torch's convention).
        """
        if len(shape) != 4:
            raise InputError(f"only images (n, channels, height, width) can be augmented, not shape {tuple(shape)}")
        n, _, height, width = shape
        angle = np.deg2rad(rng.uniform(-self.rotation, self.rotation, n))
        size = rng.uniform(1 - self.scaling, 1 + self.scaling, n)
        shift = rng.integers(-self.crop, self.crop + 1, (n, 2))
        sign = np.where(rng.random(n) < 0.5, -1.0, 1.0) if self.flip else np.ones(n)

        shift_x, shift_y = 2 * shift[:, 0] / width, 2 * shift[:, 1] / height
        cos, sin, aspect = np.cos(angle) / size, np.sin(angle) / size, height / width
        entries = np.stack([sign * cos, -sin * aspect, shift_x, sign * sin / aspect, cos, shift_y], 1)
        return entries.reshape(n, 2, 3)
