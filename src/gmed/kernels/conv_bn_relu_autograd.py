"""A unit of a residual network as few kernels.

A step of a small ResNet is bound by the number of its kernels where images are small, and by what they read and write
where images are large. Here statistics are taken while the convolution's result is still at hand, the normalisation,
the sum with what comes around and the rectifier are one pass, and the way back is as short. Nothing is added up in an
order left to chance, so the same numbers give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, relu

from gmed.kernels import triton_kernels as kernels
from gmed.models.batch_norm import BatchNorm

FORWARD = {"ROWS": 128, "DEPTH": 32, "num_stages": 3, "num_warps": 4}
BACK = {"ROWS": 128, "DEPTH": 32, "num_stages": 1, "num_warps": 4}
WEIGH = {"ROWS": 64, "DEPTH": 64, "num_stages": 1, "num_warps": 2}
"""For each kernel with products the places of a tile, how deep a product of two tiles is at most, and how many of them
are on their way to how many warps at a time: the fastest of some dozens on an H200 (benchmarks/speed.md)."""

PROGRAMS = 256
"""About as many programs as a kernel has: what one learner in twenty can use of a large GPU, and some more."""

NUMBERS, PARTS = 2048, 4096
"""Numbers that a program holds of each tensor at a time, where it does no product, and of what earlier programs found.
"""


def fused_unit(conv: nn.Conv2d, norm: BatchNorm, x: Tensor, around: Tensor | None, rectified: bool) -> Tensor:
    """What :func:`gmed.kernels.conv_bn_relu.unit` computes, where ``norm`` uses the statistics of the batch."""
    kept = (norm.running_mean, norm.running_var) if norm.track_running_stats else (None, None)
    settings = Settings(conv.kernel_size[0], conv.stride[0], norm.eps, norm.momentum or 0.0, rectified, *kept)
    out: Tensor = Unit.apply(x, conv.weight, norm.weight, norm.bias, around, settings)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class Settings:
    """What a unit is besides its parameters."""

    size: int
    stride: int
    tiny: float
    momentum: float
    rectified: bool
    kept_mean: Tensor | None = None
    kept_variance: Tensor | None = None

    def plainly(self, x: Tensor, weight: Tensor, gain: Tensor, shift: Tensor, around: Tensor | None) -> Tensor:
        """The unit in torch's own operations, keeping no statistics."""
        y = conv2d(x, weight, stride=self.stride, padding=self.size // 2)
        z = batch_norm(y, None, None, gain, shift, training=True, eps=self.tiny)
        z = z if around is None else z + around
        return relu(z) if self.rectified else z


class Unit(torch.autograd.Function):
    """The kernels as one operation that autograd knows."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, settings = given
        x, weight, gain, shift, around = map(channels_last, tensors)
        shape = Shape.of(x, weight, settings)
        y = x.new_empty(shape.examples, *shape.sides[2:], shape.out).permute(0, 3, 1, 2)
        programs, columns = even(-(-shape.places // FORWARD["ROWS"]), shape.most_parts), columns_of(shape.out)
        found = x.new_empty(3, programs, shape.out)
        kernels.convolve[programs, -(-shape.out // columns)](
            x, weight, y, found, shape.places, *shape.sides, **shape.kind(FORWARD, shape.into, columns)
        )
        out, statistics = torch.empty_like(y), x.new_empty(2, shape.out)
        kernels.normalise[(shape.passes,)](
            y,
            y if around is None else around,
            out,
            found,
            programs,
            gain,
            shift,
            statistics,
            statistics if settings.kept_mean is None else settings.kept_mean,
            statistics if settings.kept_variance is None else settings.kept_variance,
            settings.momentum,
            settings.tiny,
            shape.places,
            PARTS=power_of_two(programs),
            AROUND=around is not None,
            RECTIFIED=settings.rectified,
            KEEP=settings.kept_mean is not None,
            **shape.channels,
        )
        ctx.save_for_backward(*tensors, y, out, statistics)
        ctx.settings = settings
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, y, out, statistics = ctx.saved_tensors
        wanted, settings = ctx.needs_input_grad, ctx.settings
        if torch.is_grad_enabled():  # somebody will differentiate this gradient
            asked = [t for t, needed in zip(tensors, wanted, strict=False) if needed]
            slopes = iter(torch.autograd.grad(settings.plainly(*tensors), asked, slope, create_graph=True))
            return tuple(next(slopes) if needed else None for needed in wanted)
        x, weight, gain, shift, around = map(channels_last, tensors)
        shape, slope = Shape.of(x, weight, settings), channels_last(slope)
        kind = {"AROUND": around is not None, "RECTIFIED": settings.rectified}
        sums = x.new_empty(2, shape.passes, shape.out)
        before = (slope, y, out, statistics, gain, shift, sums)
        kernels.sum_back[(shape.passes,)](*before, shape.places, **kind, **shape.channels)
        slope_of_y, slopes_of_norm = torch.empty_like(y), x.new_empty(2, shape.out)
        slope_of_around = torch.empty_like(y) if wanted[4] else None
        kernels.normalise_back[(shape.passes,)](
            *before,
            shape.passes,
            slope_of_y,
            slope_of_y if slope_of_around is None else slope_of_around,
            *slopes_of_norm,
            shape.places,
            PARTS=power_of_two(shape.passes),
            GIVE_AROUND=slope_of_around is not None,
            **kind,
            **shape.channels,
        )
        return (
            shape.back(slope_of_y, weight, x) if wanted[0] else None,
            shape.weighed(slope_of_y, x) if wanted[1] else None,
            slopes_of_norm[0] if wanted[2] else None,
            slopes_of_norm[1] if wanted[3] else None,
            slope_of_around,
            None,
        )


@dataclass(frozen=True)
class Shape:
    """The sizes of a convolution, and how its work is shared out."""

    examples: int
    sides: tuple[int, int, int, int]
    into: int
    out: int
    size: int
    stride: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, settings: Settings) -> Shape:
        examples, into, height, width = x.shape
        sides = height, width, -(-height // settings.stride), -(-width // settings.stride)
        return cls(examples, sides, into, len(weight), settings.size, settings.stride)

    @property
    def places(self) -> int:
        """Rows of the result."""
        return self.examples * self.sides[2] * self.sides[3]

    def kind(self, tiles: dict[str, int], channels: int, columns: int) -> dict[str, Any]:
        """What a kernel with products is made for, that sees so many channels."""
        sizes = {"IN": self.into, "OUT": self.out, "SIZE": self.size, "STRIDE": self.stride}
        depth = min(max(power_of_two(self.size * channels), 16), tiles["DEPTH"])
        return {**sizes, **tiles, "DEPTH": depth, "COLUMNS": columns, "NUMBERS": precision()}

    @property
    def channels(self) -> dict[str, int]:
        """What a kernel without products is made for."""
        channels = power_of_two(self.out)
        return {"OUT": self.out, "CHANNELS": channels, "ROWS": max(NUMBERS // channels, 1)}

    @property
    def most_parts(self) -> int:
        """The most programs whose findings the next kernel can hold."""
        return min(PROGRAMS, max(PARTS // power_of_two(self.out), 1))

    @property
    def passes(self) -> int:
        """Programs of a kernel without products."""
        return even(-(-self.places // self.channels["ROWS"]), self.most_parts)

    def back(self, slope: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient with respect to x."""
        slope_of_x, columns = torch.empty_like(x), columns_of(self.into)
        programs = even(-(-self.places // BACK["ROWS"]), max(PROGRAMS // self.stride**2, 1))
        kernels.convolve_back[programs, -(-self.into // columns), self.stride**2](
            slope, weight, slope_of_x, self.places, *self.sides, **self.kind(BACK, self.out, columns)
        )
        return slope_of_x

    def weighed(self, slope: Tensor, x: Tensor) -> Tensor:
        """The gradient with respect to the weight."""
        columns = columns_of(self.out)
        kind = self.kind(WEIGH, self.into, columns)
        tiles = self.size * -(-self.size * self.into // kind["DEPTH"]), -(-self.out // columns)
        splits = even(-(-self.places // kind["ROWS"]), max(PROGRAMS // (tiles[0] * tiles[1]), 1))
        each = -(-self.places // (kind["ROWS"] * splits)) * kind["ROWS"]
        shares = slope.new_empty(splits, self.out, self.size, self.size, self.into)
        kernels.weigh[*tiles, splits](slope, x, shares, self.places, each, *self.sides, **kind)
        total = shares[0] if splits == 1 else shares.sum(0)
        return total.permute(0, 3, 1, 2)


def precision() -> str:
    """How exact products are: as torch is told that convolutions are to be."""
    try:
        return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    except RuntimeError:  # convolutions have a setting of their own
        own: str = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        return "ieee" if own == "ieee" else "tf32"


def columns_of(channels: int) -> int:
    """Columns of a tile: all, where they are few, and else so many that little is left over.

    >>> columns_of(20), columns_of(80)
    (32, 32)
    """
    return max(power_of_two(channels), 16) if channels <= 64 else 32


def even(tiles: int, most: int) -> int:
    """How many programs make these tiles, none of them more than it must.

    >>> even(160, 128), even(3, 128)
    (80, 3)
    """
    return -(-tiles // -(-tiles // most))


def power_of_two(number: int) -> int:
    """The least that is not below it.

    >>> power_of_two(20), power_of_two(32)
    (32, 32)
    """
    return 1 << (number - 1).bit_length()


def channels_last(tensor: Any) -> Any:
    """The same numbers, those of an image's channels side by side; nothing of nothing."""
    if tensor is None or tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
