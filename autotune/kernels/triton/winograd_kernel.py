# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The transforms of Winograd convolution F(M x M, 3x3), M = 2 or 4; the product between them is gemm_kernel.py's.

Algorithm: the image is cut into overlapping tiles of A x A pixels, A = M + 2, one for each M x M results. `spread`
transforms each tile along both dimensions; at each of the A·A positions, the product over channels of all tiles with
the transformed filters is an ordinary one, batched over positions; `gather` transforms the A x A sums of a tile back to
M x M results, adds bias and residual, and activates. (Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks", CVPR 2016.)

The matrices evaluate and interpolate polynomials at 0, ±1 and infinity for M = 2, and at 0, ±2/3, ±3/2 and infinity for
M = 4, like those of the CPU kernel, whose header (cpp/winograd_transforms.hpp) says why. Arithmetic is f32.

Blocking: one thread per (tile, channel). In channels_last neighbouring threads take neighbouring channels, in NCHW
neighbouring tiles, so that positions[A·A, tiles, channels] or [A·A, channels, tiles] is written and read in order.
Pixels outside of the image are masked. Offsets are 64 bits wide.
"""

import triton
import triton.language as tl

from autotune.kernels.triton.tile_kernel import activate

P = tl.constexpr(2.0 / 3)
Q = tl.constexpr(3.0 / 2)
P2 = tl.constexpr(4.0 / 9)
Q2 = tl.constexpr(9.0 / 4)
P3 = tl.constexpr(8.0 / 27)
Q3 = tl.constexpr(27.0 / 8)


@triton.jit
def into4(a, b, c, d):
    return a - c, b + c, c - b, d - b


@triton.jit
def into6(a, b, c, d, e, f):
    p_even, p_odd = e - c * Q2, d * P - b * Q
    q_even, q_odd = e - c * P2, d * Q - b * P
    first, last = a + e - c * (P2 + Q2), b + f - d * (P2 + Q2)
    return first, p_even + p_odd, p_even - p_odd, q_even + q_odd, q_even - q_odd, last


@triton.jit
def from4(a, b, c, d):
    return a + b + c, b - c + d


@triton.jit
def from6(a, b, c, d, e, f):
    p_sum, p_difference, q_sum, q_difference = b + c, b - c, d + e, d - e
    return (
        a + p_sum + q_sum,
        p_difference * P + q_difference * Q,
        p_sum * P2 + q_sum * Q2,
        p_difference * P3 + q_difference * Q3 + f,
    )


@triton.jit
def pixel(at, column, w, x_column, inside):
    kept = inside & (column >= 0) & (column < w)
    return tl.load(at + tl.cast(column, tl.int64) * x_column, mask=kept, other=0.0).to(tl.float32)


@triton.jit
def line(x_at, row, column, h, w, x_row, x_column, kept, M: tl.constexpr):
    """One row of each tile, transformed."""
    at, inside = x_at + tl.cast(row, tl.int64) * x_row, kept & (row >= 0) & (row < h)
    a, b = pixel(at, column, w, x_column, inside), pixel(at, column + 1, w, x_column, inside)
    c, d = pixel(at, column + 2, w, x_column, inside), pixel(at, column + 3, w, x_column, inside)
    if M == 2:
        return into4(a, b, c, d)
    else:  # noqa: RET505 - both branches are compiled where one follows a return
        e, f = pixel(at, column + 4, w, x_column, inside), pixel(at, column + 5, w, x_column, inside)
        return into6(a, b, c, d, e, f)


@triton.jit
def place(tile, tiles_h, tiles_w):
    """(image, row, column) of a tile."""
    return tl.cast(tile // tiles_w // tiles_h, tl.int64), tile // tiles_w % tiles_h, tile % tiles_w


@triton.jit
def spread(
    x, positions, tiles, tiles_h, tiles_w, channels, h, w, top, left, x_image, x_channel, x_row, x_column,
    M: tl.constexpr, TILES_LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    count = tl.cast(tiles, tl.int64) * channels
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = at < count
    if TILES_LAST:
        tile, channel = (at % tiles).to(tl.int32), at // tiles
    else:
        tile, channel = (at // channels).to(tl.int32), at % channels
    image, tile_row, tile_column = place(tile, tiles_h, tiles_w)
    row, column = tile_row * M - top, tile_column * M - left
    x_at, to = x + image * x_image + channel * x_channel, positions + at
    r0 = line(x_at, row, column, h, w, x_row, x_column, kept, M)
    r1 = line(x_at, row + 1, column, h, w, x_row, x_column, kept, M)
    r2 = line(x_at, row + 2, column, h, w, x_row, x_column, kept, M)
    r3 = line(x_at, row + 3, column, h, w, x_row, x_column, kept, M)
    if M == 2:
        for j in tl.static_range(4):
            t = into4(r0[j], r1[j], r2[j], r3[j])
            for i in tl.static_range(4):
                tl.store(to + (i * 4 + j) * count, t[i].to(positions.dtype.element_ty), mask=kept)
    else:
        r4 = line(x_at, row + 4, column, h, w, x_row, x_column, kept, M)
        r5 = line(x_at, row + 5, column, h, w, x_row, x_column, kept, M)
        for j in tl.static_range(6):
            t = into6(r0[j], r1[j], r2[j], r3[j], r4[j], r5[j])
            for i in tl.static_range(6):
                tl.store(to + (i * 6 + j) * count, t[i].to(positions.dtype.element_ty), mask=kept)


@triton.jit
def sums_line(sums, i, count, kept, M: tl.constexpr):
    """One row of each tile's sums, transformed back along it."""
    at = sums + i * (M + 2) * count
    a, b = tl.load(at, mask=kept, other=0.0), tl.load(at + count, mask=kept, other=0.0)
    c, d = tl.load(at + 2 * count, mask=kept, other=0.0), tl.load(at + 3 * count, mask=kept, other=0.0)
    if M == 2:
        return from4(a, b, c, d)
    else:  # noqa: RET505 - both branches are compiled where one follows a return
        e, f = tl.load(at + 4 * count, mask=kept, other=0.0), tl.load(at + 5 * count, mask=kept, other=0.0)
        return from6(a, b, c, d, e, f)


@triton.jit
def result(
    y, residual, value, added, row, column, out_h, out_w, y_at, y_row, y_column, kept,
    HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    at = y_at + tl.cast(row, tl.int64) * y_row + tl.cast(column, tl.int64) * y_column
    inside = kept & (row < out_h) & (column < out_w)
    value += added
    if HAS_RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + at, activate(value, ACTIVATION).to(y.dtype.element_ty), mask=inside)


@triton.jit
def gather(
    sums, y, bias, residual, tiles, tiles_h, tiles_w, filters, out_h, out_w, y_image, y_channel, y_row, y_column,
    M: tl.constexpr, TILES_LAST: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    count = tl.cast(tiles, tl.int64) * filters
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = at < count
    if TILES_LAST:
        tile, channel = (at % tiles).to(tl.int32), at // tiles
    else:
        tile, channel = (at // filters).to(tl.int32), at % filters
    image, tile_row, tile_column = place(tile, tiles_h, tiles_w)
    y_at, of = image * y_image + channel * y_channel, sums + at
    added = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        added += tl.load(bias + channel, mask=kept, other=0.0).to(tl.float32)
    r0, r1 = sums_line(of, 0, count, kept, M), sums_line(of, 1, count, kept, M)
    r2, r3 = sums_line(of, 2, count, kept, M), sums_line(of, 3, count, kept, M)
    if M == 2:
        for j in tl.static_range(2):
            t = from4(r0[j], r1[j], r2[j], r3[j])
            for i in tl.static_range(2):
                result(
                    y, residual, t[i], added, tile_row * M + i, tile_column * M + j, out_h, out_w, y_at, y_row,
                    y_column, kept, HAS_RESIDUAL, ACTIVATION,
                )  # fmt: skip
    else:
        r4, r5 = sums_line(of, 4, count, kept, M), sums_line(of, 5, count, kept, M)
        for j in tl.static_range(4):
            t = from6(r0[j], r1[j], r2[j], r3[j], r4[j], r5[j])
            for i in tl.static_range(4):
                result(
                    y, residual, t[i], added, tile_row * M + i, tile_column * M + j, out_h, out_w, y_at, y_row,
                    y_column, kept, HAS_RESIDUAL, ACTIVATION,
                )  # fmt: skip
