"""Triton kernels of :mod:`gmed.kernels.conv_bn_relu_autograd`.

Images are channels last, so an image is a matrix: one row per pixel, one column per channel. A convolution is then a
matrix product. The ``KERNEL_SIZE`` neighbors of a pixel in one row of the image, with all their channels, are
contiguous: ``KERNEL_SIZE * IN_CHANNELS`` numbers (``ROW_DEPTH``). Weights are stored as (OUT_CHANNELS, KERNEL_SIZE,
KERNEL_SIZE, IN_CHANNELS), so the weights of a row of neighbors are contiguous too.

A kernel has few programs, each of which loops over many tiles of ``BLOCK_M`` rows. There are thus few partial
statistics and sums, and the next kernel reduces them when it begins.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv_fwd_kernel(
    x,
    weight,
    y,
    partials,  # (3, programs, OUT_CHANNELS): per program the number of rows, their mean, their squared deviations
    n_rows,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN_CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    KERNEL_SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Write y, the convolution of x, and its partial statistics."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ROW_DEPTH: tl.constexpr = KERNEL_SIZE * IN_CHANNELS
    K_BLOCKS: tl.constexpr = (ROW_DEPTH + BLOCK_K - 1) // BLOCK_K
    VECTOR: tl.constexpr = 4 if IN_CHANNELS % 4 == 0 else 1
    count = 0.0
    mean = tl.zeros((BLOCK_N,), tl.float32)
    sum_squares = tl.zeros((BLOCK_N,), tl.float32)
    for tile in range(program, tl.cdiv(n_rows, BLOCK_M), programs):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        image, pixel = rows // (OUT_HEIGHT * OUT_WIDTH), rows % (OUT_HEIGHT * OUT_WIDTH)
        top = pixel // OUT_WIDTH * STRIDE - KERNEL_SIZE // 2
        left = pixel % OUT_WIDTH * STRIDE - KERNEL_SIZE // 2
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(KERNEL_SIZE * K_BLOCKS):
            down = step // K_BLOCKS
            k = step % K_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
            across = left[:, None] + k[None, :] // IN_CHANNELS
            x_mask = ((rows < n_rows) & (top + down >= 0) & (top + down < HEIGHT))[:, None] & (k < ROW_DEPTH)[None, :]
            x_mask = tl.max_constancy(x_mask & (across >= 0) & (across < WIDTH), [1, VECTOR])
            start = ((image * HEIGHT + top + down) * WIDTH + left) * IN_CHANNELS
            a = tl.load(x + (start[:, None] + k[None, :]), mask=x_mask, other=0.0)
            weight_mask = tl.max_constancy((k < ROW_DEPTH)[:, None] & (columns < OUT_CHANNELS)[None, :], [VECTOR, 1])
            b = tl.load(
                weight + (columns[None, :] * (KERNEL_SIZE * ROW_DEPTH) + down * ROW_DEPTH + k[:, None]),
                weight_mask,
                other=0.0,
            )
            total = tl.dot(a, b, total, input_precision=INPUT_PRECISION)
        out_mask = (rows < n_rows)[:, None]
        tl.store(
            y + (rows[:, None] * OUT_CHANNELS + columns[None, :]),
            total,
            mask=out_mask & (columns < OUT_CHANNELS)[None, :],
        )
        block_count = tl.minimum(n_rows - tile * BLOCK_M, BLOCK_M).to(tl.float32)
        block_mean = tl.sum(total, 0) / block_count
        centered = tl.where(out_mask, total - block_mean[None, :], 0.0)
        delta, new_count = block_mean - mean, count + block_count
        mean += delta * (block_count / new_count)
        sum_squares += tl.sum(centered * centered, 0) + delta * delta * (count * block_count / new_count)
        count = new_count
    offset_out = partials + program * OUT_CHANNELS + columns
    tl.store(offset_out, tl.zeros((BLOCK_N,), tl.float32) + count, mask=columns < OUT_CHANNELS)
    tl.store(offset_out + programs * OUT_CHANNELS, mean, mask=columns < OUT_CHANNELS)
    tl.store(offset_out + 2 * programs * OUT_CHANNELS, sum_squares, mask=columns < OUT_CHANNELS)


@triton.jit
def bn_relu_fwd_kernel(
    y,
    residual,
    out,
    partials,
    n_partials,
    bn_weight,
    bn_bias,
    stats,  # (2, OUT_CHANNELS): means and inverse standard deviations
    running_mean,
    running_var,
    momentum,
    eps,
    n_rows,
    OUT_CHANNELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUM_PARTIALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    APPLY_RELU: tl.constexpr,
    UPDATE_STATS: tl.constexpr,
):
    """Write out = relu(bn(y) + residual), with statistics reduced from the partial ones of :func:`conv_fwd_kernel`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, CHANNELS)
    channel_mask = channels < OUT_CHANNELS
    index = tl.arange(0, NUM_PARTIALS)
    offsets = partials + (index[:, None] * OUT_CHANNELS + channels[None, :])
    partial_mask = (index < n_partials)[:, None] & channel_mask[None, :]
    count = tl.load(offsets, mask=partial_mask, other=0.0)
    means = tl.load(offsets + n_partials * OUT_CHANNELS, mask=partial_mask, other=0.0)
    sum_squares = tl.load(offsets + 2 * n_partials * OUT_CHANNELS, mask=partial_mask, other=0.0)
    mean = tl.sum(count * means, 0) / n_rows
    delta = means - mean[None, :]
    variance = tl.sum(sum_squares + count * delta * delta, 0) / n_rows
    inv_std = 1.0 / tl.sqrt(variance + eps)
    if program == 0:
        tl.store(stats + channels, mean, mask=channel_mask)
        tl.store(stats + OUT_CHANNELS + channels, inv_std, mask=channel_mask)
        if UPDATE_STATS:
            unbiased = variance * (n_rows / (n_rows - 1.0))
            old_mean = tl.load(running_mean + channels, mask=channel_mask)
            old_variance = tl.load(running_var + channels, mask=channel_mask)
            tl.store(running_mean + channels, old_mean + momentum * (mean - old_mean), mask=channel_mask)
            tl.store(running_var + channels, old_variance + momentum * (unbiased - old_variance), mask=channel_mask)
    scale = inv_std * tl.load(bn_weight + channels, mask=channel_mask, other=0.0)
    offset = tl.load(bn_bias + channels, mask=channel_mask, other=0.0)
    for tile in range(program, tl.cdiv(n_rows, BLOCK_M), programs):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        tile_offsets = rows[:, None] * OUT_CHANNELS + channels[None, :]
        out_mask = (rows < n_rows)[:, None] & channel_mask[None, :]
        z = (tl.load(y + tile_offsets, mask=out_mask, other=0.0) - mean[None, :]) * scale[None, :] + offset[None, :]
        if HAS_RESIDUAL:
            z += tl.load(residual + tile_offsets, mask=out_mask, other=0.0)
        if APPLY_RELU:
            z = tl.where(z <= 0.0, 0.0, z)  # NaN stays NaN
        tl.store(out + tile_offsets, z, mask=out_mask)


@triton.jit
def _grad_of_normalized(
    grad_out,
    y,
    out,
    offsets,
    out_mask,
    mean,
    inv_std,
    bn_weight,
    bn_bias,
    HAS_RESIDUAL: tl.constexpr,
    APPLY_RELU: tl.constexpr,
):
    """Return the gradient before the ReLU, and the normalized values before weight and bias."""
    centered = tl.load(y + offsets, mask=out_mask, other=0.0) - mean[None, :]
    grad = tl.load(grad_out + offsets, mask=out_mask, other=0.0)
    if APPLY_RELU:
        if HAS_RESIDUAL:
            activation = tl.load(out + offsets, mask=out_mask, other=0.0)
        else:  # recomputed as in the forward pass
            activation = centered * (inv_std * bn_weight)[None, :] + bn_bias[None, :]
        grad = tl.where(activation <= 0.0, 0.0, grad)
    return grad, tl.where(out_mask, centered * inv_std[None, :], 0.0)


@triton.jit
def bn_bwd_reduce_kernel(
    grad_out,
    y,
    out,
    stats,
    bn_weight,
    bn_bias,
    sums,  # (2, programs, OUT_CHANNELS): sums of the gradient, and of the gradient times the normalized values
    n_rows,
    OUT_CHANNELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    APPLY_RELU: tl.constexpr,
):
    """Write partial sums over the rows for the gradient of batch-norm."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, CHANNELS)
    channel_mask = channels < OUT_CHANNELS
    mean = tl.load(stats + channels, mask=channel_mask, other=0.0)
    inv_std = tl.load(stats + OUT_CHANNELS + channels, mask=channel_mask, other=0.0)
    scale = tl.load(bn_weight + channels, mask=channel_mask, other=0.0)
    offset = tl.load(bn_bias + channels, mask=channel_mask, other=0.0)
    sum_grad = tl.zeros((BLOCK_M, CHANNELS), tl.float32)
    sum_grad_normal = tl.zeros((BLOCK_M, CHANNELS), tl.float32)
    for tile in range(program, tl.cdiv(n_rows, BLOCK_M), programs):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        offsets = rows[:, None] * OUT_CHANNELS + channels[None, :]
        out_mask = (rows < n_rows)[:, None] & channel_mask[None, :]
        grad, normalized = _grad_of_normalized(
            grad_out, y, out, offsets, out_mask, mean, inv_std, scale, offset, HAS_RESIDUAL, APPLY_RELU
        )
        sum_grad += grad
        sum_grad_normal += grad * normalized
    offset_out = sums + program * OUT_CHANNELS + channels
    tl.store(offset_out, tl.sum(sum_grad, 0), mask=channel_mask)
    tl.store(offset_out + programs * OUT_CHANNELS, tl.sum(sum_grad_normal, 0), mask=channel_mask)


@triton.jit
def bn_bwd_kernel(
    grad_out,
    y,
    out,
    stats,
    bn_weight,
    bn_bias,
    sums,
    n_partials,
    grad_y,
    grad_residual,
    grad_bn_weight,
    grad_bn_bias,
    n_rows,
    OUT_CHANNELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUM_PARTIALS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    APPLY_RELU: tl.constexpr,
    GRAD_RESIDUAL: tl.constexpr,
):
    """Write the gradients of batch-norm, from the sums of :func:`bn_bwd_reduce_kernel`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, CHANNELS)
    channel_mask = channels < OUT_CHANNELS
    index = tl.arange(0, NUM_PARTIALS)
    partial_offsets = sums + (index[:, None] * OUT_CHANNELS + channels[None, :])
    partial_mask = (index < n_partials)[:, None] & channel_mask[None, :]
    sum_grad = tl.sum(tl.load(partial_offsets, mask=partial_mask, other=0.0), 0)
    sum_grad_normal = tl.sum(tl.load(partial_offsets + n_partials * OUT_CHANNELS, mask=partial_mask, other=0.0), 0)
    if program == 0:
        tl.store(grad_bn_weight + channels, sum_grad_normal, mask=channel_mask)
        tl.store(grad_bn_bias + channels, sum_grad, mask=channel_mask)
    mean = tl.load(stats + channels, mask=channel_mask, other=0.0)
    inv_std = tl.load(stats + OUT_CHANNELS + channels, mask=channel_mask, other=0.0)
    scale = tl.load(bn_weight + channels, mask=channel_mask, other=0.0)
    offset = tl.load(bn_bias + channels, mask=channel_mask, other=0.0)
    mean_grad, mean_grad_normal = sum_grad / n_rows, sum_grad_normal / n_rows
    for tile in range(program, tl.cdiv(n_rows, BLOCK_M), programs):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        offsets = rows[:, None] * OUT_CHANNELS + channels[None, :]
        out_mask = (rows < n_rows)[:, None] & channel_mask[None, :]
        grad, normalized = _grad_of_normalized(
            grad_out, y, out, offsets, out_mask, mean, inv_std, scale, offset, HAS_RESIDUAL, APPLY_RELU
        )
        if GRAD_RESIDUAL:
            tl.store(grad_residual + offsets, grad, mask=out_mask)
        grad = (grad - mean_grad[None, :] - normalized * mean_grad_normal[None, :]) * (inv_std * scale)[None, :]
        tl.store(grad_y + offsets, grad, mask=out_mask)


@triton.jit
def conv_bwd_input_kernel(
    grad_out,
    weight,
    grad_x,
    n_rows,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN_CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    KERNEL_SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Write the gradient with respect to x: a convolution with the flipped weight.

    With a stride, pixels of x whose row and column have the same remainders use the same part of the weight, every
    ``STRIDE``-th row and column of it, at neighboring pixels of the gradient. Each program handles one such phase.
    """
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    phase = 0 if STRIDE == 1 else tl.program_id(2)
    phase_down, phase_across = phase // STRIDE, phase % STRIDE
    first_down = (KERNEL_SIZE // 2 + STRIDE - phase_down) % STRIDE
    first_across = (KERNEL_SIZE // 2 + STRIDE - phase_across) % STRIDE
    row_depth = tl.cdiv(KERNEL_SIZE - first_across, STRIDE) * OUT_CHANNELS
    k_blocks = tl.cdiv(row_depth, BLOCK_K)
    VECTOR: tl.constexpr = 4 if OUT_CHANNELS % 4 == 0 else 1
    for tile in range(tl.program_id(0), tl.cdiv(n_rows, BLOCK_M), tl.num_programs(0)):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        image, pixel = rows // (OUT_HEIGHT * OUT_WIDTH), rows % (OUT_HEIGHT * OUT_WIDTH)
        top = pixel // OUT_WIDTH + (phase_down + first_down - KERNEL_SIZE // 2) // STRIDE
        left = pixel % OUT_WIDTH + (phase_across + first_across - KERNEL_SIZE // 2) // STRIDE
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(KERNEL_SIZE - first_down, STRIDE) * k_blocks):
            down = step // k_blocks
            k = step % k_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
            across = left[:, None] + k[None, :] // OUT_CHANNELS
            x_mask = ((rows < n_rows) & (top + down >= 0) & (top + down < OUT_HEIGHT))[:, None] & (k < row_depth)[
                None, :
            ]
            x_mask = tl.max_constancy(x_mask & (across >= 0) & (across < OUT_WIDTH), [1, VECTOR])
            start = ((image * OUT_HEIGHT + top + down) * OUT_WIDTH + left) * OUT_CHANNELS
            a = tl.load(grad_out + (start[:, None] + k[None, :]), mask=x_mask, other=0.0)
            tap = (
                (KERNEL_SIZE - 1 - first_down - STRIDE * down) * KERNEL_SIZE
                + KERNEL_SIZE
                - 1
                - first_across
                - STRIDE * (k // OUT_CHANNELS)
            )
            weight_mask = (k < row_depth)[:, None] & (columns < IN_CHANNELS)[None, :]
            flipped = (k % OUT_CHANNELS * (KERNEL_SIZE * KERNEL_SIZE * IN_CHANNELS) + tap * IN_CHANNELS)[
                :, None
            ] + columns[None, :]
            b = tl.load(weight + flipped, mask=weight_mask, other=0.0)
            total = tl.dot(a, b, total, input_precision=INPUT_PRECISION)
        x_row = pixel // OUT_WIDTH * STRIDE + phase_down
        x_column = pixel % OUT_WIDTH * STRIDE + phase_across
        out_mask = ((rows < n_rows) & (x_row < HEIGHT) & (x_column < WIDTH))[:, None] & (columns < IN_CHANNELS)[None, :]
        offset_out = ((image * HEIGHT + x_row) * WIDTH + x_column) * IN_CHANNELS
        tl.store(grad_x + (offset_out[:, None] + columns[None, :]), total, mask=out_mask)


@triton.jit
def conv_bwd_weight_kernel(
    grad_out,
    x,
    partials,  # (splits, OUT_CHANNELS, KERNEL_SIZE * KERNEL_SIZE * IN_CHANNELS)
    n_rows,
    rows_per_split,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN_CHANNELS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    KERNEL_SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):
    """Write the gradient with respect to the weight, from one split of the rows."""
    ROW_DEPTH: tl.constexpr = KERNEL_SIZE * IN_CHANNELS
    K_BLOCKS: tl.constexpr = (ROW_DEPTH + BLOCK_K - 1) // BLOCK_K
    VECTOR: tl.constexpr = 4 if IN_CHANNELS % 4 == 0 else 1
    down = tl.program_id(0) // K_BLOCKS
    k = tl.program_id(0) % K_BLOCKS * BLOCK_K + tl.arange(0, BLOCK_K)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.program_id(2) * rows_per_split
    end = tl.minimum(begin + rows_per_split, n_rows)
    total = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    for offsets in range(begin, end, BLOCK_M):
        rows = offsets + tl.arange(0, BLOCK_M)
        image, pixel = rows // (OUT_HEIGHT * OUT_WIDTH), rows % (OUT_HEIGHT * OUT_WIDTH)
        top = pixel // OUT_WIDTH * STRIDE - KERNEL_SIZE // 2 + down
        left = pixel % OUT_WIDTH * STRIDE - KERNEL_SIZE // 2
        across = left[:, None] + k[None, :] // IN_CHANNELS
        x_mask = ((rows < end) & (top >= 0) & (top < HEIGHT))[:, None] & (k < ROW_DEPTH)[None, :]
        x_mask = tl.max_constancy(x_mask & (across >= 0) & (across < WIDTH), [1, VECTOR])
        start = ((image * HEIGHT + top) * WIDTH + left) * IN_CHANNELS
        a = tl.load(x + (start[:, None] + k[None, :]), mask=x_mask, other=0.0)
        out_mask = (rows < end)[:, None] & (columns < OUT_CHANNELS)[None, :]
        b = tl.load(grad_out + (rows[:, None] * OUT_CHANNELS + columns[None, :]), mask=out_mask, other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=INPUT_PRECISION)
    offset_out = (
        (tl.program_id(2) * OUT_CHANNELS + columns[None, :]) * (KERNEL_SIZE * ROW_DEPTH) + down * ROW_DEPTH + k[:, None]
    )
    tl.store(partials + offset_out, total, mask=(k < ROW_DEPTH)[:, None] & (columns < OUT_CHANNELS)[None, :])
