"""The kernels of :mod:`gmed.kernels.conv_bn_relu_autograd`, in Triton.

Images lie channels last, so an image is a matrix: a row for every place of every example, a column for every channel.
A convolution is then a product of matrices. What a place sees of one row of pixels, ``SIZE`` neighbours with all their
channels, lies in memory in one piece, and is ``SIZE * IN`` numbers deep; a weight lies as (OUT, SIZE, SIZE, IN), so
what it has for these numbers lies in one piece too.

A kernel has few programs, each of which makes many tiles of ``ROWS`` places, so that what programs find out about
their own places (statistics, sums) is little, and the next kernel puts it together as it begins.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve(
    x,
    weight,
    y,
    found,  # (3, programs, OUT): of each program's places how many, their mean, their squared distances from it
    places,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """y, the convolution of x, and its statistics."""
    first, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ACROSS: tl.constexpr = SIZE * IN
    CHUNKS: tl.constexpr = (ACROSS + DEPTH - 1) // DEPTH
    VECTOR: tl.constexpr = 4 if IN % 4 == 0 else 1
    many = 0.0
    mean = tl.zeros((COLUMNS,), tl.float32)
    squares = tl.zeros((COLUMNS,), tl.float32)
    for tile in range(first, tl.cdiv(places, ROWS), programs):
        rows = tile * ROWS + tl.arange(0, ROWS)
        image, place = rows // (OUT_HEIGHT * OUT_WIDTH), rows % (OUT_HEIGHT * OUT_WIDTH)
        top = place // OUT_WIDTH * STRIDE - SIZE // 2
        left = place % OUT_WIDTH * STRIDE - SIZE // 2
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(SIZE * CHUNKS):
            down = step // CHUNKS
            k = step % CHUNKS * DEPTH + tl.arange(0, DEPTH)
            across = left[:, None] + k[None, :] // IN
            seen = ((rows < places) & (top + down >= 0) & (top + down < HEIGHT))[:, None] & (k < ACROSS)[None, :]
            seen = tl.max_constancy(seen & (across >= 0) & (across < WIDTH), [1, VECTOR])
            start = ((image * HEIGHT + top + down) * WIDTH + left) * IN
            a = tl.load(x + (start[:, None] + k[None, :]), mask=seen, other=0.0)
            known = tl.max_constancy((k < ACROSS)[:, None] & (columns < OUT)[None, :], [VECTOR, 1])
            b = tl.load(weight + (columns[None, :] * (SIZE * ACROSS) + down * ACROSS + k[:, None]), known, other=0.0)
            total = tl.dot(a, b, total, input_precision=NUMBERS)
        inside = (rows < places)[:, None]
        tl.store(y + (rows[:, None] * OUT + columns[None, :]), total, mask=inside & (columns < OUT)[None, :])
        more = tl.minimum(places - tile * ROWS, ROWS).to(tl.float32)
        mean_here = tl.sum(total, 0) / more
        apart = tl.where(inside, total - mean_here[None, :], 0.0)
        away, all_of_them = mean_here - mean, many + more
        mean += away * (more / all_of_them)
        squares += tl.sum(apart * apart, 0) + away * away * (many * more / all_of_them)
        many = all_of_them
    to = found + first * OUT + columns
    tl.store(to, tl.zeros((COLUMNS,), tl.float32) + many, mask=columns < OUT)
    tl.store(to + programs * OUT, mean, mask=columns < OUT)
    tl.store(to + 2 * programs * OUT, squares, mask=columns < OUT)


@triton.jit
def normalise(
    y,
    around,
    out,
    found,
    parts,
    gain,
    shift,
    statistics,  # (2, OUT): means, and one over standard deviations
    kept_mean,
    kept_variance,
    momentum,
    tiny,
    places,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    AROUND: tl.constexpr,
    RECTIFIED: tl.constexpr,
    KEEP: tl.constexpr,
):
    """out, from y and the statistics that :func:`convolve` found of it."""
    first, programs = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, CHANNELS)
    real = channels < OUT
    part = tl.arange(0, PARTS)
    at = found + (part[:, None] * OUT + channels[None, :])
    there = (part < parts)[:, None] & real[None, :]
    many = tl.load(at, mask=there, other=0.0)
    means = tl.load(at + parts * OUT, mask=there, other=0.0)
    squares = tl.load(at + 2 * parts * OUT, mask=there, other=0.0)
    mean = tl.sum(many * means, 0) / places
    away = means - mean[None, :]
    variance = tl.sum(squares + many * away * away, 0) / places
    spread = 1.0 / tl.sqrt(variance + tiny)
    if first == 0:
        tl.store(statistics + channels, mean, mask=real)
        tl.store(statistics + OUT + channels, spread, mask=real)
        if KEEP:
            unbiased = variance * (places / (places - 1.0))
            old_mean = tl.load(kept_mean + channels, mask=real)
            old_variance = tl.load(kept_variance + channels, mask=real)
            tl.store(kept_mean + channels, old_mean + momentum * (mean - old_mean), mask=real)
            tl.store(kept_variance + channels, old_variance + momentum * (unbiased - old_variance), mask=real)
    scale = spread * tl.load(gain + channels, mask=real, other=0.0)
    offset = tl.load(shift + channels, mask=real, other=0.0)
    for tile in range(first, tl.cdiv(places, ROWS), programs):
        rows = tile * ROWS + tl.arange(0, ROWS)
        at_tile = rows[:, None] * OUT + channels[None, :]
        inside = (rows < places)[:, None] & real[None, :]
        z = (tl.load(y + at_tile, mask=inside, other=0.0) - mean[None, :]) * scale[None, :] + offset[None, :]
        if AROUND:
            z += tl.load(around + at_tile, mask=inside, other=0.0)
        if RECTIFIED:
            z = tl.where(z <= 0.0, 0.0, z)  # what is not a number stays so
        tl.store(out + at_tile, z, mask=inside)


@triton.jit
def _slope_of_normalised(
    slope, y, out, at, inside, mean, spread, gain, shift, AROUND: tl.constexpr, RECTIFIED: tl.constexpr
):
    """The gradient where the normalised values leave, and these values before gain and shift."""
    apart = tl.load(y + at, mask=inside, other=0.0) - mean[None, :]
    back = tl.load(slope + at, mask=inside, other=0.0)
    if RECTIFIED:
        if AROUND:
            left = tl.load(out + at, mask=inside, other=0.0)
        else:  # known from what came in, as it was computed there
            left = apart * (spread * gain)[None, :] + shift[None, :]
        back = tl.where(left <= 0.0, 0.0, back)
    return back, tl.where(inside, apart * spread[None, :], 0.0)


@triton.jit
def sum_back(
    slope,
    y,
    out,
    statistics,
    gain,
    shift,
    sums,  # (2, programs, OUT): of each program's places the gradient, and the gradient times the normalised values
    places,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    AROUND: tl.constexpr,
    RECTIFIED: tl.constexpr,
):
    """What the gradient of a normalisation needs to know of all places."""
    first, programs = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, CHANNELS)
    real = channels < OUT
    mean = tl.load(statistics + channels, mask=real, other=0.0)
    spread = tl.load(statistics + OUT + channels, mask=real, other=0.0)
    scale = tl.load(gain + channels, mask=real, other=0.0)
    offset = tl.load(shift + channels, mask=real, other=0.0)
    of_slope = tl.zeros((ROWS, CHANNELS), tl.float32)
    of_product = tl.zeros((ROWS, CHANNELS), tl.float32)
    for tile in range(first, tl.cdiv(places, ROWS), programs):
        rows = tile * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * OUT + channels[None, :]
        inside = (rows < places)[:, None] & real[None, :]
        back, normal = _slope_of_normalised(slope, y, out, at, inside, mean, spread, scale, offset, AROUND, RECTIFIED)
        of_slope += back
        of_product += back * normal
    to = sums + first * OUT + channels
    tl.store(to, tl.sum(of_slope, 0), mask=real)
    tl.store(to + programs * OUT, tl.sum(of_product, 0), mask=real)


@triton.jit
def normalise_back(
    slope,
    y,
    out,
    statistics,
    gain,
    shift,
    sums,
    parts,
    slope_of_y,
    slope_of_around,
    slope_of_gain,
    slope_of_shift,
    places,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    AROUND: tl.constexpr,
    RECTIFIED: tl.constexpr,
    GIVE_AROUND: tl.constexpr,
):
    """The gradients of a normalisation, from what :func:`sum_back` found."""
    first, programs = tl.program_id(0), tl.num_programs(0)
    channels = tl.arange(0, CHANNELS)
    real = channels < OUT
    part = tl.arange(0, PARTS)
    at_part = sums + (part[:, None] * OUT + channels[None, :])
    there = (part < parts)[:, None] & real[None, :]
    of_slope = tl.sum(tl.load(at_part, mask=there, other=0.0), 0)
    of_product = tl.sum(tl.load(at_part + parts * OUT, mask=there, other=0.0), 0)
    if first == 0:
        tl.store(slope_of_gain + channels, of_product, mask=real)
        tl.store(slope_of_shift + channels, of_slope, mask=real)
    mean = tl.load(statistics + channels, mask=real, other=0.0)
    spread = tl.load(statistics + OUT + channels, mask=real, other=0.0)
    scale = tl.load(gain + channels, mask=real, other=0.0)
    offset = tl.load(shift + channels, mask=real, other=0.0)
    mean_slope, mean_product = of_slope / places, of_product / places
    for tile in range(first, tl.cdiv(places, ROWS), programs):
        rows = tile * ROWS + tl.arange(0, ROWS)
        at = rows[:, None] * OUT + channels[None, :]
        inside = (rows < places)[:, None] & real[None, :]
        back, normal = _slope_of_normalised(slope, y, out, at, inside, mean, spread, scale, offset, AROUND, RECTIFIED)
        if GIVE_AROUND:
            tl.store(slope_of_around + at, back, mask=inside)
        back = (back - mean_slope[None, :] - normal * mean_product[None, :]) * (spread * scale)[None, :]
        tl.store(slope_of_y + at, back, mask=inside)


@triton.jit
def convolve_back(
    slope,
    weight,
    slope_of_x,
    places,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """The gradient of a convolution with respect to x: a convolution with the weight turned around.

    With a stride, places of x whose row and column leave the same rest see the same part of the weight, every
    ``STRIDE``-th of its rows and columns, which lie over neighbours in the gradient. Each program is of one such phase.
    """
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    phase = 0 if STRIDE == 1 else tl.program_id(2)
    phase_down, phase_across = phase // STRIDE, phase % STRIDE
    first_down = (SIZE // 2 + STRIDE - phase_down) % STRIDE
    first_across = (SIZE // 2 + STRIDE - phase_across) % STRIDE
    across = tl.cdiv(SIZE - first_across, STRIDE) * OUT
    chunks = tl.cdiv(across, DEPTH)
    VECTOR: tl.constexpr = 4 if OUT % 4 == 0 else 1
    for tile in range(tl.program_id(0), tl.cdiv(places, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        image, place = rows // (OUT_HEIGHT * OUT_WIDTH), rows % (OUT_HEIGHT * OUT_WIDTH)
        top = place // OUT_WIDTH + (phase_down + first_down - SIZE // 2) // STRIDE
        left = place % OUT_WIDTH + (phase_across + first_across - SIZE // 2) // STRIDE
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(tl.cdiv(SIZE - first_down, STRIDE) * chunks):
            down = step // chunks
            k = step % chunks * DEPTH + tl.arange(0, DEPTH)
            beside = left[:, None] + k[None, :] // OUT
            seen = ((rows < places) & (top + down >= 0) & (top + down < OUT_HEIGHT))[:, None] & (k < across)[None, :]
            seen = tl.max_constancy(seen & (beside >= 0) & (beside < OUT_WIDTH), [1, VECTOR])
            start = ((image * OUT_HEIGHT + top + down) * OUT_WIDTH + left) * OUT
            a = tl.load(slope + (start[:, None] + k[None, :]), mask=seen, other=0.0)
            tap = (SIZE - 1 - first_down - STRIDE * down) * SIZE + SIZE - 1 - first_across - STRIDE * (k // OUT)
            known = (k < across)[:, None] & (columns < IN)[None, :]
            turned = (k % OUT * (SIZE * SIZE * IN) + tap * IN)[:, None] + columns[None, :]
            b = tl.load(weight + turned, mask=known, other=0.0)
            total = tl.dot(a, b, total, input_precision=NUMBERS)
        own_top = place // OUT_WIDTH * STRIDE + phase_down
        own_left = place % OUT_WIDTH * STRIDE + phase_across
        inside = ((rows < places) & (own_top < HEIGHT) & (own_left < WIDTH))[:, None] & (columns < IN)[None, :]
        to = ((image * HEIGHT + own_top) * WIDTH + own_left) * IN
        tl.store(slope_of_x + (to[:, None] + columns[None, :]), total, mask=inside)


@triton.jit
def weigh(
    slope,
    x,
    shares,  # (splits, OUT, SIZE * SIZE * IN)
    places,
    places_each,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    NUMBERS: tl.constexpr,
):
    """The gradient of a convolution with respect to its weight, from a share of the places."""
    ACROSS: tl.constexpr = SIZE * IN
    CHUNKS: tl.constexpr = (ACROSS + DEPTH - 1) // DEPTH
    VECTOR: tl.constexpr = 4 if IN % 4 == 0 else 1
    down = tl.program_id(0) // CHUNKS
    k = tl.program_id(0) % CHUNKS * DEPTH + tl.arange(0, DEPTH)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.program_id(2) * places_each
    end = tl.minimum(begin + places_each, places)
    total = tl.zeros((DEPTH, COLUMNS), tl.float32)
    for at in range(begin, end, ROWS):
        rows = at + tl.arange(0, ROWS)
        image, place = rows // (OUT_HEIGHT * OUT_WIDTH), rows % (OUT_HEIGHT * OUT_WIDTH)
        top = place // OUT_WIDTH * STRIDE - SIZE // 2 + down
        left = place % OUT_WIDTH * STRIDE - SIZE // 2
        across = left[:, None] + k[None, :] // IN
        seen = ((rows < end) & (top >= 0) & (top < HEIGHT))[:, None] & (k < ACROSS)[None, :]
        seen = tl.max_constancy(seen & (across >= 0) & (across < WIDTH), [1, VECTOR])
        start = ((image * HEIGHT + top) * WIDTH + left) * IN
        a = tl.load(x + (start[:, None] + k[None, :]), mask=seen, other=0.0)
        inside = (rows < end)[:, None] & (columns < OUT)[None, :]
        b = tl.load(slope + (rows[:, None] * OUT + columns[None, :]), mask=inside, other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=NUMBERS)
    to = (tl.program_id(2) * OUT + columns[None, :]) * (SIZE * ACROSS) + down * ACROSS + k[:, None]
    tl.store(shares + to, total, mask=(k < ACROSS)[:, None] & (columns < OUT)[None, :])
