# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""conv: a convolution as one product whose left matrix, the patches of the image, is never written (implicit GEMM).

Algorithm: the rows of the product are output pixels (image, row, column), its columns the output channels of a
group, and it sums over depth: filter row, filter column, input channel, the channel fastest, so that in channels_last
a step reads lines that lie together. Each load of a patch's element computes where it is in the image, and whether it
is inside of it; padding is a mask. Weights are packed once to [group, depth, channel]. (Chetlur et al., "cuDNN:
Efficient Primitives for Deep Learning", 2014, section 3.)

Blocking, numbering of programs and split of the sum: as in gemm_kernel.py. `finish` adds the parts of a split.

Any strides of the image are right; results are written to strides of pixels and channels, hence NCHW and channels_last.
Offsets are 64 bits wide, pixels and depth are counted in 32.
"""

import triton
import triton.language as tl

from autotune.kernels.triton.tile_kernel import activate, multiply_add


@triton.jit
def conv(
    x, weight, y, bias, residual, pixels, out_h, out_w, h, w, channels, filters, depth, x_image, x_channel, x_row,
    x_column, y_part, y_image, y_pixel, y_channel, stride_h, stride_w, dilation_h, dilation_w, top, left,
    FILTER_W: tl.constexpr, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`channels` and `filters` are those of one group."""
    rows, columns = tl.cdiv(pixels, BLOCK_M), tl.cdiv(filters, BLOCK_N)
    program = tl.program_id(0)
    tile, part = program % (rows * columns), program // (rows * columns)
    split, group = part // GROUPS, tl.cast(part % GROUPS, tl.int64)
    wide = GROUP_M * columns
    first_row = tile // wide * GROUP_M
    high = tl.minimum(rows - first_row, GROUP_M)
    tile_m, tile_n = first_row + tile % wide % high, tile % wide // high

    in_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    in_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    in_k = split * BLOCK_K + tl.arange(0, BLOCK_K)
    column, above = in_m % out_w, in_m // out_w
    row, image = above % out_h, tl.cast(above // out_h, tl.int64)
    from_row, from_column = row * stride_h - top, column * stride_w - left
    x_at = x + group * channels * x_channel + image * x_image
    x_at += tl.cast(from_row, tl.int64) * x_row + tl.cast(from_column, tl.int64) * x_column
    w_at = weight + group * depth * filters + tl.cast(in_k, tl.int64)[:, None] * filters + in_n[None, :]

    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = BLOCK_K * SPLIT_K
    for start in range(0, tl.cdiv(depth, step)):
        k = start * step + in_k
        channel, tap = k % channels, k // channels
        down, right = tap // FILTER_W * dilation_h, tap % FILTER_W * dilation_w
        offset = tl.cast(channel, tl.int64) * x_channel + tl.cast(down, tl.int64) * x_row
        offset += tl.cast(right, tl.int64) * x_column
        at_row, at_column = from_row[:, None] + down[None, :], from_column[:, None] + right[None, :]
        inside = (at_row >= 0) & (at_row < h) & (at_column >= 0) & (at_column < w) & (in_m[:, None] < pixels)
        known = in_n[None, :] < filters
        if not EVEN_K:
            inside = inside & (k[None, :] < depth)
            known = known & (k[:, None] < depth)
        patches = tl.load(x_at[:, None] + offset[None, :], mask=inside, other=0.0)
        weights = tl.load(w_at, mask=known, other=0.0)
        sums = multiply_add(patches, weights, sums, PRECISION)
        w_at += tl.cast(step, tl.int64) * filters

    of_group = group * filters + in_n
    y_at = image * y_image + tl.cast(row * out_w + column, tl.int64) * y_pixel
    y_at = y_at[:, None] + of_group[None, :] * y_channel
    kept = (in_m[:, None] < pixels) & (in_n[None, :] < filters)
    if HAS_BIAS:
        sums += tl.load(bias + of_group, mask=in_n < filters, other=0.0).to(tl.float32)[None, :]
    if HAS_RESIDUAL:
        sums += tl.load(residual + y_at, mask=kept, other=0.0).to(tl.float32)
    sums = activate(sums, ACTIVATION)
    y_at += tl.cast(split, tl.int64) * y_part
    tl.store(y + y_at, sums.to(y.dtype.element_ty), mask=kept)


@triton.jit
def finish(
    partial, y, bias, residual, count, per_channel, filters,
    SPLIT_K: tl.constexpr, BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """y, `count` elements in the order of its memory, from partial[SPLIT_K, count] in the same order.

    Each channel has `per_channel` elements in a row: the pixels of an image, or 1 in channels_last.
    """
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kept = at < count
    sums = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLIT_K):
        sums += tl.load(partial + split * tl.cast(count, tl.int64) + at, mask=kept, other=0.0)
    if HAS_BIAS:
        sums += tl.load(bias + at // per_channel % filters, mask=kept, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        sums += tl.load(residual + at, mask=kept, other=0.0).to(tl.float32)
    tl.store(y + at, activate(sums, ACTIVATION).to(y.dtype.element_ty), mask=kept)
