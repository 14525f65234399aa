"""relu(bn(conv(x)) + residual) as an autograd function of a few Triton kernels.

The time of a step of a small ResNet is determined by the number of kernels if images are small, and by memory traffic
if they are large. Here the kernel of the convolution also computes the statistics; batch-norm, residual and ReLU are
one pass; the backward pass is equally short. Sums are computed in a fixed order, so equal inputs give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, relu

from gmed.kernels import triton_kernels as kernels
from gmed.models.batch_norm import BatchNorm

FORWARD = {"BLOCK_M": 128, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4}
GRAD_INPUT = {"BLOCK_M": 128, "BLOCK_K": 32, "num_stages": 1, "num_warps": 4}
GRAD_WEIGHT = {"BLOCK_M": 64, "BLOCK_K": 64, "num_stages": 1, "num_warps": 2}
"""Tile sizes, pipeline stages and warps of each matrix-product kernel: the fastest of several dozen on an H200
(benchmarks/speed.md)."""

MAX_PROGRAMS = 256
"""Maximum number of programs of a kernel: somewhat more than one learner of twenty can use of a large GPU."""

ELEMENTS_PER_PROGRAM, MAX_PARTIALS = 2048, 4096
"""Tile size of programs without matrix products, and the maximum number of partial results one of them can reduce."""


def fused_conv_bn_relu(
    conv: nn.Conv2d, norm: BatchNorm, x: Tensor, residual: Tensor | None, apply_relu: bool
) -> Tensor:
    """Compute :func:`gmed.kernels.conv_bn_relu.conv_bn_relu`, where ``norm`` uses the statistics of the batch."""
    running = (norm.running_mean, norm.running_var) if norm.track_running_stats else (None, None)
    config = ConvBnReluConfig(conv.kernel_size[0], conv.stride[0], norm.eps, norm.momentum or 0.0, apply_relu, *running)
    out: Tensor = ConvBnReluFn.apply(x, conv.weight, norm.weight, norm.bias, residual, config)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class ConvBnReluConfig:
    """Settings of the operation besides its parameters."""

    kernel_size: int
    stride: int
    eps: float
    momentum: float
    apply_relu: bool
    running_mean: Tensor | None = None
    running_var: Tensor | None = None

    def reference(
        self, x: Tensor, weight: Tensor, bn_weight: Tensor, bn_bias: Tensor, residual: Tensor | None
    ) -> Tensor:
        """Compute the result with torch's own operations, without updating running statistics."""
        y = conv2d(x, weight, stride=self.stride, padding=self.kernel_size // 2)
        z = batch_norm(y, None, None, bn_weight, bn_bias, training=True, eps=self.eps)
        z = z if residual is None else z + residual
        return relu(z) if self.apply_relu else z


class ConvBnReluFn(torch.autograd.Function):
    """The kernels as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        *tensors, config = args
        x, weight, bn_weight, bn_bias, residual = map(channels_last, tensors)
        shape = ConvShape.of(x, weight, config)
        y = x.new_empty(shape.examples, *shape.spatial[2:], shape.out_channels).permute(0, 3, 1, 2)
        programs, block_columns = (
            balanced_grid(-(-shape.num_rows // FORWARD["BLOCK_M"]), shape.max_partials),
            block_n(shape.out_channels),
        )
        partials = x.new_empty(3, programs, shape.out_channels)
        kernels.conv_fwd_kernel[programs, -(-shape.out_channels // block_columns)](
            x,
            weight,
            y,
            partials,
            shape.num_rows,
            *shape.spatial,
            **shape.gemm_constants(FORWARD, shape.in_channels, block_columns),
        )
        out, stats = torch.empty_like(y), x.new_empty(2, shape.out_channels)
        kernels.bn_relu_fwd_kernel[(shape.num_programs,)](
            y,
            y if residual is None else residual,
            out,
            partials,
            programs,
            bn_weight,
            bn_bias,
            stats,
            stats if config.running_mean is None else config.running_mean,
            stats if config.running_var is None else config.running_var,
            config.momentum,
            config.eps,
            shape.num_rows,
            NUM_PARTIALS=power_of_two(programs),
            HAS_RESIDUAL=residual is not None,
            APPLY_RELU=config.apply_relu,
            UPDATE_STATS=config.running_mean is not None,
            **shape.channel_constants,
        )
        ctx.save_for_backward(*tensors, y, out, stats)
        ctx.config = config
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, y, out, stats = ctx.saved_tensors
        needs_grad, config = ctx.needs_input_grad, ctx.config
        if torch.is_grad_enabled():  # for a second derivative
            inputs = [t for t, needed in zip(tensors, needs_grad, strict=False) if needed]
            grads = iter(torch.autograd.grad(config.reference(*tensors), inputs, grad_out, create_graph=True))
            return tuple(next(grads) if needed else None for needed in needs_grad)
        x, weight, bn_weight, bn_bias, residual = map(channels_last, tensors)
        shape, grad_out = ConvShape.of(x, weight, config), channels_last(grad_out)
        constants = {"HAS_RESIDUAL": residual is not None, "APPLY_RELU": config.apply_relu}
        sums = x.new_empty(2, shape.num_programs, shape.out_channels)
        inputs_and_sums = (grad_out, y, out, stats, bn_weight, bn_bias, sums)
        kernels.bn_bwd_reduce_kernel[(shape.num_programs,)](
            *inputs_and_sums, shape.num_rows, **constants, **shape.channel_constants
        )
        grad_y, grad_bn = torch.empty_like(y), x.new_empty(2, shape.out_channels)
        grad_residual = torch.empty_like(y) if needs_grad[4] else None
        kernels.bn_bwd_kernel[(shape.num_programs,)](
            *inputs_and_sums,
            shape.num_programs,
            grad_y,
            grad_y if grad_residual is None else grad_residual,
            *grad_bn,
            shape.num_rows,
            NUM_PARTIALS=power_of_two(shape.num_programs),
            GRAD_RESIDUAL=grad_residual is not None,
            **constants,
            **shape.channel_constants,
        )
        return (
            shape.grad_input(grad_y, weight, x) if needs_grad[0] else None,
            shape.grad_weight(grad_y, x) if needs_grad[1] else None,
            grad_bn[0] if needs_grad[2] else None,
            grad_bn[1] if needs_grad[3] else None,
            grad_residual,
            None,
        )


@dataclass(frozen=True)
class ConvShape:
    """The sizes of a convolution, and how its work is split into programs."""

    examples: int
    spatial: tuple[int, int, int, int]
    in_channels: int
    out_channels: int
    kernel_size: int
    stride: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, config: ConvBnReluConfig) -> ConvShape:
        examples, in_channels, height, width = x.shape
        spatial = height, width, -(-height // config.stride), -(-width // config.stride)
        return cls(examples, spatial, in_channels, len(weight), config.kernel_size, config.stride)

    @property
    def num_rows(self) -> int:
        """Number of rows of the result: one per pixel."""
        return self.examples * self.spatial[2] * self.spatial[3]

    def gemm_constants(self, tiles: dict[str, int], channels: int, block_columns: int) -> dict[str, Any]:
        """Return the compile-time constants of a matrix-product kernel that reads this number of channels."""
        sizes = {
            "IN_CHANNELS": self.in_channels,
            "OUT_CHANNELS": self.out_channels,
            "KERNEL_SIZE": self.kernel_size,
            "STRIDE": self.stride,
        }
        depth = min(max(power_of_two(self.kernel_size * channels), 16), tiles["BLOCK_K"])
        return {**sizes, **tiles, "BLOCK_K": depth, "BLOCK_N": block_columns, "INPUT_PRECISION": precision()}

    @property
    def channel_constants(self) -> dict[str, int]:
        """Compile-time constants of a kernel without matrix products."""
        channels = power_of_two(self.out_channels)
        return {
            "OUT_CHANNELS": self.out_channels,
            "CHANNELS": channels,
            "BLOCK_M": max(ELEMENTS_PER_PROGRAM // channels, 1),
        }

    @property
    def max_partials(self) -> int:
        """Maximum number of programs whose partial results the next kernel can reduce."""
        return min(MAX_PROGRAMS, max(MAX_PARTIALS // power_of_two(self.out_channels), 1))

    @property
    def num_programs(self) -> int:
        """Number of programs of a kernel without matrix products."""
        return balanced_grid(-(-self.num_rows // self.channel_constants["BLOCK_M"]), self.max_partials)

    def grad_input(self, grad_out: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Return the gradient with respect to x."""
        grad_x, block_columns = torch.empty_like(x), block_n(self.in_channels)
        programs = balanced_grid(-(-self.num_rows // GRAD_INPUT["BLOCK_M"]), max(MAX_PROGRAMS // self.stride**2, 1))
        kernels.conv_bwd_input_kernel[programs, -(-self.in_channels // block_columns), self.stride**2](
            grad_out,
            weight,
            grad_x,
            self.num_rows,
            *self.spatial,
            **self.gemm_constants(GRAD_INPUT, self.out_channels, block_columns),
        )
        return grad_x

    def grad_weight(self, grad_out: Tensor, x: Tensor) -> Tensor:
        """Return the gradient with respect to the weight."""
        block_columns = block_n(self.out_channels)
        constants = self.gemm_constants(GRAD_WEIGHT, self.in_channels, block_columns)
        tiles = (
            self.kernel_size * -(-self.kernel_size * self.in_channels // constants["BLOCK_K"]),
            -(-self.out_channels // block_columns),
        )
        splits = balanced_grid(-(-self.num_rows // constants["BLOCK_M"]), max(MAX_PROGRAMS // (tiles[0] * tiles[1]), 1))
        rows_per_split = -(-self.num_rows // (constants["BLOCK_M"] * splits)) * constants["BLOCK_M"]
        partials = grad_out.new_empty(splits, self.out_channels, self.kernel_size, self.kernel_size, self.in_channels)
        kernels.conv_bwd_weight_kernel[*tiles, splits](
            grad_out, x, partials, self.num_rows, rows_per_split, *self.spatial, **constants
        )
        total = partials[0] if splits == 1 else partials.sum(0)
        return total.permute(0, 3, 1, 2)


def precision() -> str:
    """Return the input precision that torch is set to use for convolutions."""
    try:
        return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    except RuntimeError:  # the precision was set for convolutions separately
        setting: str = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        return "ieee" if setting == "ieee" else "tf32"


def block_n(channels: int) -> int:
    """Return the number of columns of a tile: all up to 64, else 32, which leaves few unused.

    >>> block_n(20), block_n(80)
    (32, 32)
    """
    return max(power_of_two(channels), 16) if channels <= 64 else 32


def balanced_grid(tiles: int, most: int) -> int:
    """Return the number of programs, at most ``most``, that distributes the tiles most evenly.

    >>> balanced_grid(160, 128), balanced_grid(3, 128)
    (80, 3)
    """
    return -(-tiles // -(-tiles // most))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number.

    >>> power_of_two(20), power_of_two(32)
    (32, 32)
    """
    return 1 << (number - 1).bit_length()


def channels_last(tensor: Any) -> Any:
    """Return a tensor in channels-last layout; ``None`` and tensors that are not images are returned unchanged."""
    if tensor is None or tensor.dim() != 4:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
